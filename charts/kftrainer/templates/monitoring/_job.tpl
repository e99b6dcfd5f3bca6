{{/*
The label job of the manager in Prometheus: the name of the Service with a ServiceMonitor, or
<namespace>/<name> of the PodMonitor.
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
