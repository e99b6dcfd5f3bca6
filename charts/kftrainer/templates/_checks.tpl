{{/*
What the schema of the values cannot say, because it hangs on several of them. Each message begins
with the path of a value and says what to do.
*/}}

{{/* A duration such as 1m30s in milliseconds. */}}
{{- define "kftrainer.milliseconds" -}}
{{- $units := dict "h" 3600000.0 "m" 60000.0 "s" 1000.0 "ms" 1.0 "us" 0.001 "µs" 0.001 "ns" 0.000001 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9]+(\\.[0-9]+)?(h|ms|µs|us|ns|m|s)" . -1 -}}
{{- $unit := regexFind "[^0-9.]+" . -}}
{{- $sum = addf $sum (mulf (trimSuffix $unit . | float64) (get $units $unit)) -}}
{{- end -}}
{{- $sum -}}
{{- end }}

{{- define "kftrainer.checks" -}}
{{- $values := .Values -}}
{{- if gt (len (include "kftrainer.fullname" .)) 44 -}}
{{- fail (printf "fullnameOverride: the release's name %s has more than 44 characters, which is too long for the names of Services: set a shorter one" .Release.Name) -}}
{{- end -}}

{{- $election := $values.config.leaderElection -}}
{{- if and (gt (int $values.replicaCount) 1) (not $election.leaderElect) -}}
{{- fail "replicaCount: with config.leaderElection.leaderElect=false there must be 1 replica at most, as all of them would work: switch the election on, or set 1" -}}
{{- end -}}
{{- if $election.leaderElect -}}
{{- $lease := include "kftrainer.milliseconds" $election.leaseDuration | float64 -}}
{{- $renew := include "kftrainer.milliseconds" $election.renewDeadline | float64 -}}
{{- $retry := include "kftrainer.milliseconds" $election.retryPeriod | float64 -}}
{{- if not (gt $lease $renew) -}}
{{- fail (printf "config.leaderElection.leaseDuration: %s must be longer than renewDeadline, which is %s" $election.leaseDuration $election.renewDeadline) -}}
{{- end -}}
{{- if not (gt $renew (mulf 1.2 $retry)) -}}
{{- fail (printf "config.leaderElection.renewDeadline: %s must be longer than 1.2 times retryPeriod, which is %s" $election.renewDeadline $election.retryPeriod) -}}
{{- end -}}
{{- if not (gt $retry 0.0) -}}
{{- fail "config.leaderElection.retryPeriod: must be longer than nothing" -}}
{{- end -}}
{{- end -}}
{{- if and (gt (float64 $values.config.clientConnection.qps) 0.0) (lt (int $values.config.clientConnection.burst) 1) -}}
{{- fail "config.clientConnection.burst: must be at least 1 where qps is set" -}}
{{- end -}}

{{- if and (not $values.serviceAccount.create) (not $values.serviceAccount.name) -}}
{{- fail "serviceAccount.name: say which ServiceAccount the manager runs as, because serviceAccount.create is false" -}}
{{- end -}}

{{- $ports := dict (toString (int $values.health.port)) "health.port" -}}
{{- range $path, $section := dict "webhook.port" $values.webhook "metrics.port" $values.metrics -}}
{{- if $section.enabled -}}
{{- $port := toString (int $section.port) -}}
{{- if hasKey $ports $port -}}
{{- fail (printf "%s: %s is also %s: two servers cannot listen on one port, set another" $path $port (get $ports $port)) -}}
{{- end -}}
{{- $_ := set $ports $port $path -}}
{{- end -}}
{{- end -}}

{{- if eq $values.certs.mode "provided" -}}
{{- if not $values.certs.existingSecret -}}
{{- fail "certs.existingSecret: with certs.mode=provided, say the name of the Secret with tls.crt and tls.key" -}}
{{- end -}}
{{- if and $values.webhook.enabled (not $values.certs.caBundle) (not $values.webhook.annotations) -}}
{{- fail "certs.caBundle: with certs.mode=provided, say whom the API server is to trust (--set-file certs.caBundle=ca.crt), or have it injected by webhook.annotations" -}}
{{- end -}}
{{- else -}}
{{- if $values.certs.existingSecret -}}
{{- fail (printf "certs.existingSecret: it is used with certs.mode=provided only, and the mode is %s: set one or the other" $values.certs.mode) -}}
{{- end -}}
{{- if $values.certs.caBundle -}}
{{- fail (printf "certs.caBundle: it is used with certs.mode=provided only, and the mode is %s: set one or the other" $values.certs.mode) -}}
{{- end -}}
{{- end -}}
{{- with $values.certs.certManager.issuerRef -}}
{{- if not .name -}}
{{- fail "certs.certManager.issuerRef.name: say the issuer's name, or leave issuerRef empty" -}}
{{- end -}}
{{- end -}}

{{- $metrics := $values.metrics -}}
{{- range $each := list "serviceMonitor" "podMonitor" -}}
{{- $monitor := get $metrics $each -}}
{{- if and $monitor.enabled (not $metrics.enabled) -}}
{{- fail (printf "metrics.%s.enabled: there is nothing to scrape with metrics.enabled=false: switch metrics on, or this off" $each) -}}
{{- end -}}
{{- end -}}
{{- if and $metrics.serviceMonitor.enabled $metrics.podMonitor.enabled -}}
{{- fail "metrics.podMonitor.enabled: everything would be scraped twice: choose this or metrics.serviceMonitor.enabled" -}}
{{- end -}}
{{- if and $metrics.podMonitor.enabled $metrics.secure (not $metrics.podMonitor.authorization) -}}
{{- fail "metrics.podMonitor.authorization: a PodMonitor cannot show Prometheus' own token: say which Secret holds one, use metrics.serviceMonitor, or set metrics.secure=false" -}}
{{- end -}}

{{- if and $values.podDisruptionBudget.enabled (eq (toString $values.podDisruptionBudget.minAvailable) "") (eq (toString $values.podDisruptionBudget.maxUnavailable) "") -}}
{{- fail "podDisruptionBudget.maxUnavailable: set this or minAvailable, or podDisruptionBudget.enabled=false" -}}
{{- end -}}
{{- end }}
