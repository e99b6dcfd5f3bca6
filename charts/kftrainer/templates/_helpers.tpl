{{/*
Names, labels and images used by several templates.
*/}}

{{/* The prefix of all object names. */}}
{{- define "kftrainer.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name -}}
{{- end }}

{{/* The name of the manager's Deployment, Service and roles. */}}
{{- define "kftrainer.manager" -}}
{{- include "kftrainer.fullname" . }}-controller-manager
{{- end }}

{{/* The ServiceAccount that the manager runs as. */}}
{{- define "kftrainer.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "kftrainer.manager" .) -}}
{{- end }}

{{/* The Secret with the serving certificate. */}}
{{- define "kftrainer.certSecretName" -}}
{{- if eq .Values.certs.mode "provided" -}}
{{- .Values.certs.existingSecret -}}
{{- else if eq .Values.certs.mode "cert-manager" -}}
{{- /* Not the manager's own Secret: after a change of the mode its content would be invalid. */ -}}
{{- include "kftrainer.fullname" . }}-webhook-tls
{{- else -}}
{{- include "kftrainer.fullname" . }}-webhook-cert
{{- end -}}
{{- end }}

{{/* The host name under which the API server and Prometheus call the Service. */}}
{{- define "kftrainer.serverName" -}}
{{- include "kftrainer.manager" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{/* Whether a server uses a certificate that the manager does not create; empty if not. */}}
{{- define "kftrainer.mountsCertificate" -}}
{{- if and (ne .Values.certs.mode "self-managed") (or .Values.webhook.enabled (and .Values.metrics.enabled .Values.metrics.secure)) -}}
true
{{- end -}}
{{- end }}

{{/* The file with the authority of client certificates; empty if none is required. */}}
{{- define "kftrainer.clientCAFile" -}}
{{- $from := .Values.webhook.clientCA | default dict -}}
{{- if and .Values.webhook.enabled (or $from.secretName $from.configMapName) -}}
/etc/kftrainer/client-ca/{{ $from.key }}
{{- end -}}
{{- end }}


{{/*
Whether a built-in plugin is enabled; empty if not. Takes a dict: root, plugin.
*/}}
{{- define "kftrainer.runsPlugin" -}}
{{- if not (has .plugin .root.Values.config.plugins.disabled) -}}
true
{{- end -}}
{{- end }}

{{/*
Labels in selectors of a component's pods. They are those of Kubeflow Trainer's own chart, so that a
release of it can be upgraded to this one: the selector of a Deployment is immutable.
Takes a dict: root, component.
*/}}
{{- define "kftrainer.selectorLabels" -}}
app.kubernetes.io/name: kubeflow-trainer
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/part-of: kubeflow
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels in selectors of the manager's pods. Takes the root. */}}
{{- define "kftrainer.managerSelectorLabels" -}}
{{- $ours := include "kftrainer.selectorLabels" (dict "root" . "component" "manager") | fromYaml -}}
{{- toYaml (merge $ours (.Values.selectorLabels | default dict)) -}}
{{- end }}

{{/*
All labels of an object; those of the chart override those of the values. Takes a dict: root,
component and optionally labels, which are specific to this object.
*/}}
{{- define "kftrainer.labels" -}}
{{- $ours := include "kftrainer.selectorLabels" . | fromYaml -}}
{{- $release := dict
      "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63)
      "app.kubernetes.io/version" (.root.Chart.AppVersion | replace "+" "_" | trunc 63)
      "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- toYaml (merge $ours $release (.labels | default dict) (.root.Values.commonLabels | default dict)) -}}
{{- end }}

{{/*
The metadata of an object. Takes a dict: root, name, component and optionally
  namespace           if it is not the namespace of the release
  clusterScoped       if the object has no namespace
  labels, annotations specific to this object
*/}}
{{- define "kftrainer.metadata" -}}
name: {{ .name | quote }}
{{- if not .clusterScoped }}
namespace: {{ .namespace | default .root.Release.Namespace | quote }}
{{- end }}
labels:
  {{- include "kftrainer.labels" . | nindent 2 }}
{{- with merge (deepCopy (.annotations | default dict)) (.root.Values.commonAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
The reference of an image. Takes a dict: root, image, path (of the value, for messages) and
optionally tag, the default tag.
*/}}
{{- define "kftrainer.image" -}}
{{- $registry := .root.Values.global.imageRegistry | default .image.registry | default "" -}}
{{- $mirrored := ne (.root.Values.global.imageRegistry | default "") "" -}}
{{- /* With a mirror, a part that looks like a host may be a folder in the mirror. */ -}}
{{- if and $registry (or (contains ":" .image.repository) (and (not $mirrored) (regexMatch "^[^/]*[.][^/]*/" .image.repository))) -}}
{{- fail (printf "%s.repository: %s contains a registry, and %s is also set: remove one of them" .path .image.repository (ternary "global.imageRegistry" (printf "%s.registry" .path) $mirrored)) -}}
{{- end -}}
{{- $name := ternary (printf "%s/%s" $registry .image.repository) .image.repository (ne $registry "") -}}
{{- $tag := .image.tag | default (.tag | default "") -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else if $tag -}}
{{- printf "%s:%s" $name $tag -}}
{{- else -}}
{{- fail (printf "%s: a tag or a digest is required" .path) -}}
{{- end -}}
{{- end }}

{{/* The image of the manager and the hooks. Takes the root. */}}
{{- define "kftrainer.ownImage" -}}
{{- include "kftrainer.image" (dict "root" . "image" .Values.image "path" "image" "tag" .Chart.AppVersion) -}}
{{- end }}

{{/* The imagePullSecrets of a pod. Takes a list of names or of `{name: …}`. */}}
{{- define "kftrainer.pullSecrets" -}}
{{- $names := list -}}
{{- range . -}}
{{- $names = append $names (ternary . (dict "name" .) (kindIs "map" .)) -}}
{{- end -}}
{{- with uniq $names -}}
imagePullSecrets:
{{ toYaml . }}
{{- end -}}
{{- end }}

{{/* The imagePullSecrets of the chart's own pods. Takes the root. */}}
{{- define "kftrainer.ownPullSecrets" -}}
{{- include "kftrainer.pullSecrets" (concat (.Values.global.imagePullSecrets | default list) (.Values.imagePullSecrets | default list)) -}}
{{- end }}

{{/* The namespace in which `helm test` calls the webhook. */}}
{{- define "kftrainer.testNamespace" -}}
{{- .Values.hooks.test.namespace | default (first (append (.Values.watchNamespaces | default list) .Release.Namespace)) -}}
{{- end }}

{{/* The manager's ServiceAccount, as the subject of a binding. */}}
{{- define "kftrainer.managerSubject" -}}
- kind: ServiceAccount
  name: {{ include "kftrainer.serviceAccountName" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
{{- end }}
