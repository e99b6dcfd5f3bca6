{{/*
What Prometheus calls the manager in the label job: the Service with a ServiceMonitor, and with a
PodMonitor that itself.
*/}}
{{- define "kftrainer.prometheusJob" -}}
{{- $metrics := .Values.metrics -}}
{{- $manager := include "kftrainer.manager" . -}}
{{- if $metrics.rules.job -}}
{{- $metrics.rules.job -}}
{{- else if and $metrics.podMonitor.enabled (not $metrics.serviceMonitor.enabled) -}}
{{- printf "%s/%s" ($metrics.podMonitor.namespace | default .Release.Namespace) $manager -}}
{{- else -}}
{{- $manager -}}
{{- end -}}
{{- end }}
