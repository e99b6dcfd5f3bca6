{{/*
What the manager may do, no more than it does. An apply is a `patch`, and a `create` as well if
there is no such object.
*/}}

{{/* Rights in the namespaces that are looked after. */}}
{{- define "kftrainer.namespacedRules" -}}
# TrainJobs are read, and their status is written; they are never changed.
- apiGroups: [trainer.kubeflow.org]
  resources: [trainjobs]
  verbs: [list, watch]
- apiGroups: [trainer.kubeflow.org]
  resources: [trainjobs/status]
  verbs: [patch]
{{- if .Values.rbac.ownerReferencesPermissionEnforcement }}
# Who makes objects that block their owner's deletion must be allowed to hinder it.
- apiGroups: [trainer.kubeflow.org]
  resources: [trainjobs/finalizers]
  verbs: [update]
{{- end }}
# Runtimes are read, again right before a TrainJob is told that its own is missing, and get a
# finalizer while they are in use.
- apiGroups: [trainer.kubeflow.org]
  resources: [trainingruntimes]
  verbs: [get, list, watch, patch]
# Each TrainJob runs as a JobSet; it is read again if somebody else has made one of that name.
- apiGroups: [jobset.x-k8s.io]
  resources: [jobsets]
  verbs: [get, list, watch, create, patch]
# When a JobSet's first pods run is told by its Jobs.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch]
# What goes wrong with a TrainJob is told by Events; one that repeats is counted.
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- if include "kftrainer.runsPlugin" (dict "root" . "plugin" "MPI") }}
# MPI: the SSH keys and the hostfile of a TrainJob. Of all others the manager reads the metadata
# only, but nothing less than this right lets it do so. Disable the plugin MPI to be without.
- apiGroups: [""]
  resources: [secrets, configmaps]
  verbs: [get, list, watch, create, patch]
{{- end }}
{{- if include "kftrainer.runsPlugin" (dict "root" . "plugin" "CoScheduling") }}
# CoScheduling: the gang of a TrainJob.
- apiGroups: [scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, list, watch, create, patch]
{{- end }}
{{- if include "kftrainer.runsPlugin" (dict "root" . "plugin" "Volcano") }}
# Volcano: the gang of a TrainJob.
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [get, list, watch, create, patch]
{{- end }}
{{- if include "kftrainer.runsGangs" . }}
# How much a gang asks for hangs on the defaults of its namespace.
- apiGroups: [""]
  resources: [limitranges]
  verbs: [list, watch]
{{- end }}
{{- with .Values.rbac.extraNamespacedRules }}
# As rbac.extraNamespacedRules says.
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Whether a plugin runs that makes gangs; empty if not. */}}
{{- define "kftrainer.runsGangs" -}}
{{- include "kftrainer.runsPlugin" (dict "root" . "plugin" "CoScheduling") -}}
{{- include "kftrainer.runsPlugin" (dict "root" . "plugin" "Volcano") -}}
{{- end }}

{{/* Rights on what is in no namespace. */}}
{{- define "kftrainer.clusterRules" -}}
{{- $verbs := list "get" "list" "watch" -}}
{{- if or .Values.runtimes.enabled (not .Values.watchNamespaces) }}{{ $verbs = append $verbs "patch" }}{{ end -}}
{{- if .Values.runtimes.enabled }}{{ $verbs = append $verbs "create" }}{{ end -}}
{{- if and .Values.runtimes.enabled (not .Values.watchNamespaces) }}{{ $verbs = append $verbs "delete" }}{{ end -}}
# Runtimes for all namespaces are read{{ if not .Values.watchNamespaces }}, and get a finalizer while they are in use{{ end }}.
{{- if .Values.runtimes.enabled }}
# Those of this chart are applied{{ if not .Values.watchNamespaces }}, and deleted when the chart has them no more and nobody uses them{{ end }}.
{{- end }}
- apiGroups: [trainer.kubeflow.org]
  resources: [clustertrainingruntimes]
  verbs: [{{ join ", " $verbs }}]
{{- if include "kftrainer.runsGangs" . }}
# How much a gang asks for hangs on the overhead of its RuntimeClass.
- apiGroups: [node.k8s.io]
  resources: [runtimeclasses]
  verbs: [list, watch]
{{- end }}
{{- if include "kftrainer.runsPlugin" (dict "root" . "plugin" "Volcano") }}
# Volcano: a TrainJob is refused if its PriorityClass does not exist.
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [{{ if .Values.webhook.enabled }}get, {{ end }}list, watch]
{{- end }}
{{- if and .Values.webhook.enabled (eq .Values.certs.mode "self-managed") }}
# Whom the API server trusts is written into our own webhook configuration.
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations]
  resourceNames: [validator.trainer.kubeflow.org]
  verbs: [get, list, watch, update]
{{- end }}
{{- if and .Values.metrics.enabled .Values.metrics.secure }}
# Who asks for metrics, and whether they may see them.
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}
{{- with .Values.rbac.extraRules }}
# As rbac.extraRules says.
{{ toYaml . }}
{{- end }}
{{- end }}
