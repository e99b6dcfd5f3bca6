{{/*
The tokens in the webhook's path: those of the values, those of an earlier revision, or a generated
one. See docs/decisions/0010-who-may-call-the-webhook.md.
*/}}

{{/* The Secret with the tokens; empty if there are none. */}}
{{- define "kftrainer.pathTokenSecret" -}}
{{- if include "kftrainer.pathTokens" . | fromJsonArray -}}
{{- include "kftrainer.pathTokenSecretName" . -}}
{{- end -}}
{{- end }}

{{- define "kftrainer.pathTokenSecretName" -}}
{{- include "kftrainer.fullname" . }}-webhook-path
{{- end }}

{{/* The tokens as a JSON list, computed once per rendering: a generated token is random. */}}
{{- define "kftrainer.pathTokens" -}}
{{- if not (hasKey .Values.webhook "foundPathTokens") -}}
{{- $_ := set .Values.webhook "foundPathTokens" (include "kftrainer.findPathTokens" .) -}}
{{- end -}}
{{- .Values.webhook.foundPathTokens -}}
{{- end }}

{{- define "kftrainer.findPathTokens" -}}
{{- if not .Values.webhook.enabled -}}
[]
{{- else if .Values.webhook.pathTokens -}}
{{- .Values.webhook.pathTokens | toJson -}}
{{- else -}}
{{- $name := include "kftrainer.pathTokenSecretName" . -}}
{{- $secret := lookup "v1" "Secret" .Release.Namespace $name -}}
{{- if $secret -}}
{{- include "kftrainer.pathTokensIn" $secret -}}
{{- else if include "kftrainer.mayGeneratePathToken" . -}}
{{- list (randAlphaNum 32 | lower) | toJson -}}
{{- else -}}
[]
{{- end -}}
{{- end -}}
{{- end }}

{{/* The tokens that a Secret contains, as a JSON list. */}}
{{- define "kftrainer.pathTokensIn" -}}
{{- $tokens := regexSplit "\\s+" (dig "data" "tokens" "" . | b64dec | trim) -1 -}}
{{- range $tokens -}}
{{- if not (regexMatch "^(plain|[a-z0-9]{16,63})$" .) -}}
{{- fail (printf "webhook.pathTokens: the Secret %s contains no valid tokens: set the tokens here" $.metadata.name) -}}
{{- end -}}
{{- end -}}
{{- $tokens | toJson -}}
{{- end }}

{{/*
Whether a token can be generated; empty if not.
- Helm must be able to read the cluster. Otherwise, as with `helm template` and Argo CD, each
  rendering would have a different token. Every cluster has the role cluster-admin, and users who
  can install ClusterRoles can read it.
- No manager may be running: a running manager would reject the new path until it is replaced.
*/}}
{{- define "kftrainer.mayGeneratePathToken" -}}
{{- $canRead := lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "cluster-admin" -}}
{{- if and $canRead (not (lookup "apps/v1" "Deployment" .Release.Namespace (include "kftrainer.manager" .))) -}}
true
{{- end -}}
{{- end }}

{{/*
Whether no setting of the chart prevents pods from calling the webhook; empty if one does. The
tokens [plain] count as such a setting, because they are explicit.
*/}}
{{- define "kftrainer.isWebhookOpen" -}}
{{- $isRestricted := and .Values.networkPolicy.enabled .Values.networkPolicy.webhookFrom (not .Values.hostNetwork) -}}
{{- if and .Values.webhook.enabled (not $isRestricted) (not (include "kftrainer.clientCAFile" .)) (not (include "kftrainer.pathTokenSecret" .)) -}}
true
{{- end -}}
{{- end }}
