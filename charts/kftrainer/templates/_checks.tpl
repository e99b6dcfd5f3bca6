{{/*
Checks that the schema of the values cannot express, because they depend on several values. Each
message begins with the path of a value and says what to do.
*/}}

{{/* Converts a duration such as 1m30s to milliseconds. */}}
{{- define "kftrainer.milliseconds" -}}
{{- $day := 86400000.0 -}}
{{- $units := dict "y" (mulf 365.0 $day) "w" (mulf 7.0 $day) "d" $day "h" 3600000.0 "m" 60000.0 "s" 1000.0 "ms" 1.0 "us" 0.001 "µs" 0.001 "ns" 0.000001 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9]+(\\.[0-9]+)?(y|w|d|h|ms|µs|us|ns|m|s)" . -1 -}}
{{- $unit := regexFind "[^0-9.]+" . -}}
{{- $sum = addf $sum (mulf (trimSuffix $unit . | float64) (get $units $unit)) -}}
{{- end -}}
{{- $sum -}}
{{- end }}

{{/* The longest validity of a certificate that the release's own cert-manager authority signs. */}}
{{- define "kftrainer.longestCertificate" -}}43800h{{- end }}

{{/* A number or string as text; empty if it is not set. */}}
{{- define "kftrainer.said" -}}
{{- if not (kindIs "invalid" .) }}{{ . }}{{ end -}}
{{- end }}

{{/*
Converts a number or a percentage of the replicas to a number, rounded up. Takes a dict: of (as
text), replicas.
*/}}
{{- define "kftrainer.countOf" -}}
{{- if hasSuffix "%" .of -}}
{{- divf (mulf (trimSuffix "%" .of | float64) .replicas) 100.0 | ceil -}}
{{- else -}}
{{- .of -}}
{{- end -}}
{{- end }}

{{- define "kftrainer.checks" -}}
{{- $values := .Values -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "kftrainer.fullname" .)) -}}
{{- fail (printf "fullnameOverride: the release's name %s cannot begin the name of a Service: set one of lower-case letters, digits and -, which begins with a letter" .Release.Name) -}}
{{- end -}}
{{- if gt (len (include "kftrainer.fullname" .)) 44 -}}
{{- fail (printf "fullnameOverride: the release's name %s has more than 44 characters, which is too long for the names of Services: set a shorter one" .Release.Name) -}}
{{- end -}}
{{- if and $values.userRoles.create (has (include "kftrainer.fullname" .) (list "cluster" "kubeflow")) -}}
{{- fail (printf "fullnameOverride: a role for people would be called %s-admin, which there is already: set another beginning of names, or userRoles.create=false" (include "kftrainer.fullname" .)) -}}
{{- end -}}

{{- if not $values.image.repository -}}
{{- fail "image.repository: no image is published yet: build one with `make image IMAGE=<registry>/<repository>:<tag> BASE_IMAGE=<image>@sha256:<digest>`, push it, and set image.registry, image.repository and, if it is not the chart's appVersion, image.tag" -}}
{{- end -}}
{{- if and (eq (int $values.replicaCount) 0) $values.webhook.enabled (eq $values.webhook.failurePolicy "Fail") -}}
{{- fail "replicaCount: with 0 nobody answers the webhook, and webhook.failurePolicy=Fail then rejects every TrainJob and runtime: set 1 or more, or webhook.failurePolicy=Ignore, or webhook.enabled=false" -}}
{{- end -}}
{{- $clients := $values.webhook.clientCA | default dict -}}
{{- if and $clients.secretName $clients.configMapName -}}
{{- fail "webhook.clientCA.configMapName: webhook.clientCA.secretName is set as well: leave one of them empty" -}}
{{- end -}}
{{- if and $clients.names (not $clients.secretName) (not $clients.configMapName) -}}
{{- fail "webhook.clientCA.names: has no effect without an authority: set webhook.clientCA.secretName or webhook.clientCA.configMapName" -}}
{{- end -}}

{{- $election := $values.config.leaderElection -}}
{{- if and (gt (int $values.replicaCount) 1) (not $election.leaderElect) -}}
{{- fail "replicaCount must be 0 or 1 while leader election is off, otherwise all replicas reconcile at once: set config.leaderElection.leaderElect=true, or replicaCount=1" -}}
{{- end -}}
{{- $rolls := eq ($values.strategy | default dict | dig "type" "RollingUpdate") "RollingUpdate" -}}
{{- if and $values.strategy $rolls (not $election.leaderElect) -}}
{{- fail "strategy.type: with config.leaderElection.leaderElect=false it must be Recreate, as the old pod and the new one would both work: set that, or leave strategy empty" -}}
{{- end -}}
{{- if and (not $rolls) (hasKey $values.strategy "rollingUpdate") -}}
{{- fail "strategy.rollingUpdate: it is for RollingUpdate, and strategy.type is Recreate: set one or the other" -}}
{{- end -}}
{{- with $values.strategy | default dict | dig "rollingUpdate" dict -}}
{{- $surge := include "kftrainer.said" .maxSurge -}}
{{- $fewer := include "kftrainer.said" .maxUnavailable -}}
{{- if and (has $surge (list "0" "0%")) (has $fewer (list "0" "0%")) -}}
{{- fail "strategy.rollingUpdate.maxSurge: with maxUnavailable 0 as well no pod could ever be replaced: set more of one of them" -}}
{{- end -}}
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
{{- $workers := dict -}}
{{- range $kind, $_ := $values.config.controller.groupKindConcurrency | default dict -}}
{{- $short := trimSuffix ".trainer.kubeflow.org" $kind -}}
{{- if hasKey $workers $short -}}
{{- fail (printf "config.controller.groupKindConcurrency: %s is there twice, once with its group: leave one of them out" $short) -}}
{{- end -}}
{{- $_ := set $workers $short true -}}
{{- end -}}

{{- if $values.runtimes.enabled -}}
{{- range include "kftrainer.runtimeFiles" . | fromYaml -}}
{{- $runtime := fromYaml . -}}
{{- range $policy, $plugin := dict "mpi" "MPI" "torch" "Torch" -}}
{{- if and (hasKey $runtime.spec.mlPolicy $policy) (has $plugin $values.config.plugins.disabled) -}}
{{- fail (printf "config.plugins.disabled: the runtime %s needs the plugin %s: leave the plugin on, or switch the runtime off in runtimes, too" $runtime.metadata.name $plugin) -}}
{{- end -}}
{{- end -}}
{{- end -}}
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
{{- if and $values.webhook.enabled $values.metrics.enabled (eq (int $values.metrics.port) 443) -}}
{{- fail "metrics.port: 443 is the Service's port of the webhook: set another" -}}
{{- end -}}

{{- if and (eq ($values.dnsPolicy | default "") "None") (not ($values.dnsConfig | default dict | dig "nameservers" "")) -}}
{{- fail "dnsConfig.nameservers: with dnsPolicy=None, say who resolves names" -}}
{{- end -}}

{{- range $path, $ours := dict "extraVolumes" (list "config" "runtimes" "certs" "client-ca" "webhook-path" "tmp") "initContainers" (list "manager") "sidecars" (list "manager") -}}
{{- range get $values $path | default list -}}
{{- if has .name $ours -}}
{{- fail (printf "%s: %s is the name of one of the chart's own: choose another" $path .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if eq $values.certs.mode "provided" -}}
{{- if not $values.certs.existingSecret -}}
{{- fail "certs.existingSecret: with certs.mode=provided, say the name of the Secret with tls.crt and tls.key" -}}
{{- end -}}
{{- $injectors := list "cert-manager.io/inject-ca-from" "cert-manager.io/inject-ca-from-secret" "service.beta.openshift.io/inject-cabundle" -}}
{{- $injected := false -}}
{{- range $injectors -}}
{{- if hasKey ($values.webhook.annotations | default dict) . -}}{{- $injected = true -}}{{- end -}}
{{- end -}}
{{- if and $values.webhook.enabled (eq $values.webhook.failurePolicy "Fail") (not $values.certs.caBundle) (not $injected) -}}
{{- fail (printf "certs.caBundle: with certs.mode=provided, say whom the API server is to trust (--set-file certs.caBundle=ca.crt), or have it injected by one of these webhook.annotations: %s" (join ", " $injectors)) -}}
{{- end -}}
{{- with $values.certs.caBundle -}}
{{- $begin := "-----BEGIN CERTIFICATE-----" -}}
{{- if not (or (contains $begin .) (contains $begin (b64dec . | toString))) -}}
{{- fail "certs.caBundle: it is no certificate, neither as PEM nor as PEM in base64: a file is given with --set-file certs.caBundle=ca.crt" -}}
{{- end -}}
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
{{- $days := $metrics.rules.certificateDays -}}
{{- $warning := mulf $days.warning 86400000.0 -}}
{{- if not (gt (float64 $days.warning) (float64 $days.critical)) -}}
{{- fail (printf "metrics.rules.certificateDays.warning: %v must be more than critical, which is %v" $days.warning $days.critical) -}}
{{- end -}}
{{- if and $metrics.rules.enabled (eq $values.certs.mode "self-managed") (not (lt (float64 $days.warning) 90.0)) -}}
{{- fail (printf "metrics.rules.certificateDays.warning: %v must be less than 90, as the manager renews its certificate 90 days before the end" $days.warning) -}}
{{- end -}}
{{- if eq $values.certs.mode "cert-manager" -}}
{{- $made := $values.certs.certManager -}}
{{- $life := include "kftrainer.milliseconds" $made.duration | float64 -}}
{{- $early := include "kftrainer.milliseconds" $made.renewBefore | float64 -}}
{{- if not (lt $early $life) -}}
{{- fail (printf "certs.certManager.renewBefore: %s must be shorter than duration, which is %s" $made.renewBefore $made.duration) -}}
{{- end -}}
{{- $longest := include "kftrainer.longestCertificate" . -}}
{{- if and (not $made.issuerRef) (gt $life (include "kftrainer.milliseconds" $longest | float64)) -}}
{{- fail (printf "certs.certManager.duration: %s must not be longer than %s, or the certificate would outlive its authority: set a shorter one, or issuerRef" $made.duration $longest) -}}
{{- end -}}
{{- if and $metrics.rules.enabled (not (gt $early $warning)) -}}
{{- fail (printf "certs.certManager.renewBefore: %s must be longer than the %v days of metrics.rules.certificateDays.warning, or the alert fires before cert-manager renews: set more here, or less there" $made.renewBefore $days.warning) -}}
{{- end -}}
{{- end -}}
{{- range $each := list "serviceMonitor" "podMonitor" -}}
{{- $monitor := get $metrics $each -}}
{{- if and $monitor.enabled (not $metrics.enabled) -}}
{{- fail (printf "metrics.%s.enabled: there is nothing to scrape with metrics.enabled=false: switch metrics on, or this off" $each) -}}
{{- end -}}
{{- if gt (include "kftrainer.milliseconds" ($monitor.scrapeTimeout | default "0s") | float64) (include "kftrainer.milliseconds" $monitor.interval | float64) -}}
{{- fail (printf "metrics.%s.scrapeTimeout: %s must not be longer than interval, which is %s" $each $monitor.scrapeTimeout $monitor.interval) -}}
{{- end -}}
{{- end -}}
{{- if and $metrics.serviceMonitor.enabled $metrics.podMonitor.enabled -}}
{{- fail "metrics.podMonitor.enabled: everything would be scraped twice: choose this or metrics.serviceMonitor.enabled" -}}
{{- end -}}
{{- if and $metrics.podMonitor.enabled $metrics.secure (not $metrics.podMonitor.authorization) -}}
{{- fail "metrics.podMonitor.authorization: a PodMonitor cannot show Prometheus' own token: say which Secret holds one, use metrics.serviceMonitor, or set metrics.secure=false" -}}
{{- end -}}

{{- $budget := $values.podDisruptionBudget -}}
{{- if $budget.enabled -}}
{{- $replicas := int $values.replicaCount -}}
{{- $least := include "kftrainer.said" $budget.minAvailable -}}
{{- $most := include "kftrainer.said" $budget.maxUnavailable -}}
{{- if and (eq $least "") (eq $most "") -}}
{{- fail "podDisruptionBudget.maxUnavailable: set this or minAvailable, or podDisruptionBudget.enabled=false" -}}
{{- end -}}
{{- if gt $replicas 1 -}}
{{- if and (ne $least "") (ge (include "kftrainer.countOf" (dict "of" $least "replicas" $replicas) | int) $replicas) -}}
{{- fail (printf "podDisruptionBudget.minAvailable: %s is all of the %d replicas, so that no node could ever be drained: set less, or podDisruptionBudget.enabled=false" $least $replicas) -}}
{{- end -}}
{{- if and (eq $least "") (eq (include "kftrainer.countOf" (dict "of" $most "replicas" $replicas) | int) 0) -}}
{{- fail (printf "podDisruptionBudget.maxUnavailable: with %s no node could ever be drained: set at least 1, or podDisruptionBudget.enabled=false" $most) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
