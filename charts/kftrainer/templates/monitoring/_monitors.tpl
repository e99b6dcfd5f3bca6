{{/*
How Prometheus reads the metrics; what ServiceMonitor and PodMonitor have in common. Takes a dict:
root, monitor (its values), port, bearer (how the token is shown if the values do not say).
*/}}
{{- define "kftrainer.scraping" -}}
{{- $metrics := .root.Values.metrics -}}
port: {{ .port }}
path: /metrics
scheme: {{ ternary "https" "http" $metrics.secure }}
interval: {{ .monitor.interval | quote }}
{{- with .monitor.scrapeTimeout }}
scrapeTimeout: {{ . | quote }}
{{- end }}
# What is told of TrainJobs has a label `namespace`, which is theirs and not the manager's.
honorLabels: true
{{- if .monitor.authorization }}
authorization:
  {{- toYaml .monitor.authorization | nindent 2 }}
{{- else if and $metrics.secure .bearer }}
bearerTokenFile: {{ .bearer }}
{{- end }}
{{- if $metrics.secure }}
tlsConfig:
  {{- if .monitor.tlsConfig }}
  {{- toYaml .monitor.tlsConfig | nindent 2 }}
  {{- else if and (eq .root.Values.certs.mode "cert-manager") (or (not .monitor.namespace) (eq .monitor.namespace .root.Release.Namespace)) }}
  serverName: {{ include "kftrainer.serverName" .root | quote }}
  ca:
    secret:
      name: {{ include "kftrainer.certSecretName" .root | quote }}
      key: ca.crt
  {{- else }}
  # The authority of the certificate cannot be read from where Prometheus is, or there is none.
  insecureSkipVerify: true
  {{- end }}
{{- end }}
{{- with .monitor.relabelings }}
relabelings:
{{ toYaml . }}
{{- end }}
{{- with .monitor.metricRelabelings }}
metricRelabelings:
{{ toYaml . }}
{{- end }}
{{- end }}
