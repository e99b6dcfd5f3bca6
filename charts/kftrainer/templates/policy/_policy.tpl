{{/*
Admission policies for the requests of the manager's ServiceAccount only. RBAC limits which kinds
the manager may write; these policies limit which objects of those kinds.
*/}}

{{/*
Whether the policies are rendered; empty if not. Without a cluster, helm cannot look up kinds; all
Kubernetes releases that the chart supports serve this one.
*/}}
{{- define "kftrainer.hasManagerPolicy" -}}
{{- $served := .Capabilities.APIVersions -}}
{{- if and .Values.managerPolicy.enabled (or ($served.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") (not ($served.Has "v1/Secret"))) -}}
true
{{- end -}}
{{- end }}

{{/*
A policy and its binding. Takes a dict: root, name, rules (resourceRules), validations and
optionally variables; the last three as YAML text.
*/}}
{{- define "kftrainer.managerPolicy" -}}
{{- $name := printf "%s-manager-%s" (include "kftrainer.fullname" .root) .name -}}
{{- $account := printf "system:serviceaccount:%s:%s" .root.Release.Namespace (include "kftrainer.serviceAccountName" .root) -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  {{- include "kftrainer.metadata" (dict "root" .root "name" $name "clusterScoped" true "component" "manager") | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    {{- .rules | nindent 4 }}
  matchConditions:
  - name: is-the-manager
    expression: request.userInfo.username == {{ $account | squote }}
  {{- with .variables }}
  variables:
  {{- . | nindent 2 }}
  {{- end }}
  validations:
  {{- .validations | nindent 2 }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "kftrainer.metadata" (dict "root" .root "name" $name "clusterScoped" true "component" "manager") | nindent 2 }}
spec:
  policyName: {{ $name | quote }}
  validationActions: [Deny]
{{- end }}

{{/* Whether an object's controller is a TrainJob, as CEL. Takes the name of the variable. */}}
{{- define "kftrainer.trainJobOwners" -}}
{{ . }} == null ? [] : {{ . }}.metadata.?ownerReferences.orValue([]).filter(owner, owner.?controller.orValue(false) && owner.kind == 'TrainJob' && owner.apiVersion.startsWith('trainer.kubeflow.org/'))
{{- end }}
