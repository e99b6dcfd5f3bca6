{{/*
Parts shared by the hooks. Their pods have one component label, which a NetworkPolicy selects.
*/}}

{{/*
Annotations of a hook's object. Takes a dict: event, weight and optionally log, for Jobs and pods.
Helm deletes the objects after all hooks of the event have completed.
*/}}
{{- define "kftrainer.hookAnnotations" -}}
helm.sh/hook: {{ .event }}
helm.sh/hook-weight: {{ .weight | quote }}
{{- if .log }}
# A failed hook is kept for debugging until it runs again.
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
# helm prints the log of the pod, whether it succeeds or fails.
helm.sh/hook-output-log-policy: hook-succeeded,hook-failed
{{- else }}
# Permissions are always removed.
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- end }}
{{- end }}

{{/* The metadata of a hook's object. Takes a dict: root, event, name, weight and optionally namespace, clusterScoped, log. */}}
{{- define "kftrainer.hookMetadata" -}}
{{- include "kftrainer.metadata" (merge (dict "component" "hook" "annotations" (include "kftrainer.hookAnnotations" . | fromYaml)) .) -}}
{{- end }}

{{/*
A ServiceAccount that exists while the hook runs, and its permissions. Takes a dict: root, event,
name and optionally
  clusterRules   as a list
  rules          as a list, in `namespace`
  ownRules       as a list, in the namespace of the release
*/}}
{{- define "kftrainer.hookAccount" -}}
{{- $subjects := list (dict "kind" "ServiceAccount" "name" .name "namespace" .root.Release.Namespace) -}}
{{- $account := dict "root" .root "event" .event "name" .name -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "kftrainer.hookMetadata" (merge (dict "weight" -20) $account) | nindent 2 }}
automountServiceAccountToken: false
{{- if .root.Values.rbac.create }}
{{- with .clusterRules }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  {{- include "kftrainer.hookMetadata" (merge (dict "weight" -20 "clusterScoped" true) $account) | nindent 2 }}
rules:
{{ toYaml . }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  {{- include "kftrainer.hookMetadata" (merge (dict "weight" -10 "clusterScoped" true) $account) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $account.name | quote }}
subjects:
{{ toYaml $subjects }}
{{- end }}
{{- $own := .root.Release.Namespace -}}
{{- $byNamespace := dict $own (.ownRules | default list) -}}
{{- with .rules }}
{{- $_ := set $byNamespace $.namespace (concat (get $byNamespace $.namespace | default list) .) }}
{{- end }}
{{- range $namespace, $rules := $byNamespace }}
{{- if $rules }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "kftrainer.hookMetadata" (merge (dict "weight" -20 "namespace" $namespace) $account) | nindent 2 }}
rules:
{{ toYaml $rules }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "kftrainer.hookMetadata" (merge (dict "weight" -10 "namespace" $namespace) $account) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $account.name | quote }}
subjects:
{{ toYaml $subjects }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The pod spec of a hook. Takes a dict: root, name, args. */}}
{{- define "kftrainer.hookPodSpec" -}}
{{- $values := .root.Values -}}
serviceAccountName: {{ .name | quote }}
automountServiceAccountToken: true
restartPolicy: Never
{{- with include "kftrainer.ownPullSecrets" .root }}
{{ . }}
{{- end }}
{{- with $values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
- name: {{ first .args }}
  image: {{ include "kftrainer.ownImage" .root | quote }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  args:
  {{- range .args }}
  - {{ . | quote }}
  {{- end }}
  {{- with $values.hooks.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.securityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
  - name: tmp
    mountPath: /tmp
volumes:
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- with $values.hooks.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.hooks.tolerations }}
tolerations:
{{ toYaml . }}
{{- end }}
{{- end }}
