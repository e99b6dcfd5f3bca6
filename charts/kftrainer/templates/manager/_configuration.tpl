{{/*
The manager's configuration file. Its ports come from the same values as those of
containers, Services, probes and policies.
*/}}

{{- define "kftrainer.readinessEndpoint" -}}readyz{{- end }}
{{- define "kftrainer.livenessEndpoint" -}}healthz{{- end }}

{{- define "kftrainer.configuration" -}}
{{- $config := .Values.config -}}
apiVersion: config.trainer.kubeflow.org/v1alpha1
kind: Configuration
health:
  healthProbeBindAddress: ":{{ int .Values.health.port }}"
  readinessEndpointName: {{ include "kftrainer.readinessEndpoint" . }}
  livenessEndpointName: {{ include "kftrainer.livenessEndpoint" . }}
metrics:
  bindAddress: {{ ternary (printf ":%d" (int .Values.metrics.port)) "0" .Values.metrics.enabled | quote }}
  secureServing: {{ .Values.metrics.secure }}
webhook:
  port: {{ ternary (int .Values.webhook.port) 0 .Values.webhook.enabled }}
  {{- with include "kftrainer.clientCAFile" . }}
  clientCAFile: {{ . | quote }}
  clientNames: {{ $.Values.webhook.clientCA.names | default list | toJson }}
  {{- end }}
  {{- if include "kftrainer.pathTokenSecret" . }}
  pathTokenFile: /etc/kftrainer/webhook-path/tokens
  {{- end }}
leaderElection:
  leaderElect: {{ $config.leaderElection.leaderElect }}
  leaseDuration: {{ $config.leaderElection.leaseDuration | quote }}
  renewDeadline: {{ $config.leaderElection.renewDeadline | quote }}
  retryPeriod: {{ $config.leaderElection.retryPeriod | quote }}
  resourceName: {{ $config.leaderElection.resourceName | quote }}
{{- with $config.controller.groupKindConcurrency }}
controller:
  groupKindConcurrency:
    {{- range $kind, $number := . }}
    {{ $kind | trimSuffix ".trainer.kubeflow.org" }}.trainer.kubeflow.org: {{ int $number }}
    {{- end }}
{{- end }}
certManagement:
  enable: {{ eq .Values.certs.mode "self-managed" }}
  webhookServiceName: {{ include "kftrainer.manager" . | quote }}
  webhookSecretName: {{ include "kftrainer.certSecretName" . | quote }}
clientConnection:
  qps: {{ $config.clientConnection.qps | toJson }}
  burst: {{ int $config.clientConnection.burst }}
plugins:
  enabled: {{ $config.plugins.enabled | default list | toJson }}
  disabled: {{ $config.plugins.disabled | default list | toJson }}
admission:
  stringNumProcPerNode: {{ ($config.admission | default dict).stringNumProcPerNode | default "Warn" }}
{{- end }}
