{{/*
Annotations of both webhook configurations, as YAML.
*/}}
{{- define "kftrainer.webhookAnnotations" -}}
{{- $annotations := deepCopy (.Values.webhook.annotations | default dict) }}
{{- if eq .Values.certs.mode "cert-manager" }}
{{- $annotations = merge (dict "cert-manager.io/inject-ca-from" (printf "%s/%s" .Release.Namespace (include "kftrainer.certSecretName" .))) $annotations }}
{{- end }}
{{- toYaml $annotations }}
{{- end }}

{{/*
The fields that all webhooks have in common. Takes a dict: root, path, plural.
*/}}
{{- define "kftrainer.webhookFields" -}}
{{- $root := .root }}
{{- $bundle := $root.Values.certs.caBundle | default "" }}
{{- if contains "-----BEGIN" $bundle }}
{{- $bundle = $bundle | trim | printf "%s\n" | b64enc }}
{{- end }}
{{- $token := first (include "kftrainer.pathTokens" $root | fromJsonArray | default (list "plain")) }}
{{- $suffix := ternary "" (printf "/%s" $token) (eq $token "plain") }}
{{- $namespaces := $root.Values.webhook.namespaceSelector }}
{{- if and (not $namespaces) $root.Values.watchNamespaces }}
{{- $namespaces = dict "matchExpressions" (list (dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" $root.Values.watchNamespaces)) }}
{{- end -}}
admissionReviewVersions: [v1]
sideEffects: None
timeoutSeconds: {{ int $root.Values.webhook.timeoutSeconds }}
clientConfig:
  {{- with $bundle }}
  caBundle: {{ . | trim | quote }}
  {{- end }}
  service:
    name: {{ include "kftrainer.manager" $root | quote }}
    namespace: {{ $root.Release.Namespace | quote }}
    path: {{ .path }}{{ $suffix }}
    port: 443
{{- with $namespaces }}
namespaceSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
rules:
- apiGroups: [trainer.kubeflow.org]
  apiVersions: [v1alpha1]
  resources: [{{ .plural }}]
  operations: [CREATE, UPDATE]
{{- end }}
