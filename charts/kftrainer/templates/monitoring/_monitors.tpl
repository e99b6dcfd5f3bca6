{{/*
The scrape settings shared by ServiceMonitor and PodMonitor. Takes a dict: root, monitor (its
values), port, bearer (the default credentials).
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
# The label `namespace` of TrainJob metrics is that of the TrainJob, not that of the manager.
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
  # Prometheus cannot read the authority of the certificate, or there is none.
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
