{{/*
Checks that the schema of the values cannot express, because they depend on several values. Each
message begins with the path of a value and describes how to fix it.
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
{{- define "kftrainer.text" -}}
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
{{- fail (printf "fullnameOverride: the release name %s is not valid in names of Services: set a prefix of lower-case letters, digits and - that starts with a letter" .Release.Name) -}}
{{- end -}}
{{- if gt (len (include "kftrainer.fullname" .)) 44 -}}
{{- fail (printf "fullnameOverride: the release name %s has more than 44 characters, which is too long for names of Services: set a shorter prefix" .Release.Name) -}}
{{- end -}}
{{- if and $values.userRoles.create (has (include "kftrainer.fullname" .) (list "cluster" "kubeflow")) -}}
{{- fail (printf "fullnameOverride: the ClusterRole %s-admin exists in every cluster: set another prefix, or userRoles.create=false" (include "kftrainer.fullname" .)) -}}
{{- end -}}

{{- if not $values.image.repository -}}
{{- fail "image.repository: no image is published yet: build one with `make image IMAGE=<registry>/<repository>:<tag> BASE_IMAGE=<image>@sha256:<digest>`, push it, and set image.registry, image.repository and, if it is not the chart's appVersion, image.tag" -}}
{{- end -}}
{{- if and (eq (int $values.replicaCount) 0) $values.webhook.enabled (eq $values.webhook.failurePolicy "Fail") -}}
{{- fail "replicaCount: with 0 replicas and webhook.failurePolicy=Fail every TrainJob and runtime is rejected: set 1 or more, or webhook.failurePolicy=Ignore, or webhook.enabled=false" -}}
{{- end -}}
{{- $clients := $values.webhook.clientCA | default dict -}}
{{- if and $clients.secretName $clients.configMapName -}}
{{- fail "webhook.clientCA.configMapName: webhook.clientCA.secretName is also set: set only one of them" -}}
{{- end -}}
{{- if and $clients.names (not $clients.secretName) (not $clients.configMapName) -}}
{{- fail "webhook.clientCA.names: has no effect without a certificate authority: set webhook.clientCA.secretName or webhook.clientCA.configMapName" -}}
{{- end -}}

{{- $election := $values.config.leaderElection -}}
{{- if and (gt (int $values.replicaCount) 1) (not $election.leaderElect) -}}
{{- fail "replicaCount must be 0 or 1 while leader election is off, otherwise all replicas reconcile at once: set config.leaderElection.leaderElect=true, or replicaCount=1" -}}
{{- end -}}
{{- $rolls := eq ($values.strategy | default dict | dig "type" "RollingUpdate") "RollingUpdate" -}}
{{- if and $values.strategy $rolls (not $election.leaderElect) -}}
{{- fail "strategy.type: must be Recreate if config.leaderElection.leaderElect is false, otherwise the old and the new pod reconcile at the same time: set Recreate, or leave strategy empty" -}}
{{- end -}}
{{- if and (not $rolls) (hasKey $values.strategy "rollingUpdate") -}}
{{- fail "strategy.rollingUpdate: not allowed with strategy.type=Recreate: remove one of them" -}}
{{- end -}}
{{- with $values.strategy | default dict | dig "rollingUpdate" dict -}}
{{- $surge := include "kftrainer.text" .maxSurge -}}
{{- $fewer := include "kftrainer.text" .maxUnavailable -}}
{{- if and (has $surge (list "0" "0%")) (has $fewer (list "0" "0%")) -}}
{{- fail "strategy.rollingUpdate.maxSurge: maxSurge and maxUnavailable are both 0, so no pod can be replaced: increase one of them" -}}
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
{{- fail "config.leaderElection.retryPeriod: must be longer than 0s" -}}
{{- end -}}
{{- end -}}
{{- if and (gt (float64 $values.config.clientConnection.qps) 0.0) (lt (int $values.config.clientConnection.burst) 1) -}}
{{- fail "config.clientConnection.burst: must be at least 1 if qps is set" -}}
{{- end -}}
{{- $workers := dict -}}
{{- range $kind, $_ := $values.config.controller.groupKindConcurrency | default dict -}}
{{- $short := trimSuffix ".trainer.kubeflow.org" $kind -}}
{{- if hasKey $workers $short -}}
{{- fail (printf "config.controller.groupKindConcurrency: %s is set twice, with and without its group: remove one of them" $short) -}}
{{- end -}}
{{- $_ := set $workers $short true -}}
{{- end -}}

{{- if $values.runtimes.enabled -}}
{{- range include "kftrainer.runtimeFiles" . | fromYaml -}}
{{- $runtime := fromYaml . -}}
{{- range $policy, $plugin := dict "mpi" "MPI" "torch" "Torch" -}}
{{- if and (hasKey $runtime.spec.mlPolicy $policy) (has $plugin $values.config.plugins.disabled) -}}
{{- fail (printf "config.plugins.disabled: the runtime %s needs the plugin %s: enable the plugin, or disable the runtime in runtimes" $runtime.metadata.name $plugin) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if and (not $values.serviceAccount.create) (not $values.serviceAccount.name) -}}
{{- fail "serviceAccount.name: required if serviceAccount.create is false" -}}
{{- end -}}

{{- $ports := dict (toString (int $values.health.port)) "health.port" -}}
{{- range $path, $section := dict "webhook.port" $values.webhook "metrics.port" $values.metrics -}}
{{- if $section.enabled -}}
{{- $port := toString (int $section.port) -}}
{{- if hasKey $ports $port -}}
{{- fail (printf "%s: port %s is also %s: set different ports" $path $port (get $ports $port)) -}}
{{- end -}}
{{- $_ := set $ports $port $path -}}
{{- end -}}
{{- end -}}
{{- if and $values.webhook.enabled $values.metrics.enabled (eq (int $values.metrics.port) 443) -}}
{{- fail "metrics.port: 443 is the port of the webhook in the Service: set another port" -}}
{{- end -}}

{{- if and (eq ($values.dnsPolicy | default "") "None") (not ($values.dnsConfig | default dict | dig "nameservers" "")) -}}
{{- fail "dnsConfig.nameservers: required if dnsPolicy is None" -}}
{{- end -}}

{{- range $path, $ours := dict "extraVolumes" (list "config" "runtimes" "certs" "client-ca" "webhook-path" "tmp") "initContainers" (list "manager") "sidecars" (list "manager") -}}
{{- range get $values $path | default list -}}
{{- if has .name $ours -}}
{{- fail (printf "%s: the name %s is used by the chart: choose another name" $path .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if eq $values.certs.mode "provided" -}}
{{- if not $values.certs.existingSecret -}}
{{- fail "certs.existingSecret: required with certs.mode=provided: the name of the Secret with tls.crt and tls.key" -}}
{{- end -}}
{{- $injectors := list "cert-manager.io/inject-ca-from" "cert-manager.io/inject-ca-from-secret" "service.beta.openshift.io/inject-cabundle" -}}
{{- $injected := false -}}
{{- range $injectors -}}
{{- if hasKey ($values.webhook.annotations | default dict) . -}}{{- $injected = true -}}{{- end -}}
{{- end -}}
{{- if and $values.webhook.enabled (eq $values.webhook.failurePolicy "Fail") (not $values.certs.caBundle) (not $injected) -}}
{{- fail (printf "certs.caBundle: required with certs.mode=provided: pass the CA certificates that the API server trusts (--set-file certs.caBundle=ca.crt), or have them injected with one of these webhook.annotations: %s" (join ", " $injectors)) -}}
{{- end -}}
{{- with $values.certs.caBundle -}}
{{- $begin := "-----BEGIN CERTIFICATE-----" -}}
{{- if not (or (contains $begin .) (contains $begin (b64dec . | toString))) -}}
{{- fail "certs.caBundle: neither PEM nor base64-encoded PEM: pass a file with --set-file certs.caBundle=ca.crt" -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- if $values.certs.existingSecret -}}
{{- fail (printf "certs.existingSecret: only used with certs.mode=provided, but certs.mode is %s: change one of them" $values.certs.mode) -}}
{{- end -}}
{{- if $values.certs.caBundle -}}
{{- fail (printf "certs.caBundle: only used with certs.mode=provided, but certs.mode is %s: change one of them" $values.certs.mode) -}}
{{- end -}}
{{- end -}}
{{- with $values.certs.certManager.issuerRef -}}
{{- if not .name -}}
{{- fail "certs.certManager.issuerRef.name: required, unless issuerRef is empty" -}}
{{- end -}}
{{- end -}}

{{- $metrics := $values.metrics -}}
{{- $days := $metrics.rules.certificateDays -}}
{{- $warning := mulf $days.warning 86400000.0 -}}
{{- if not (gt (float64 $days.warning) (float64 $days.critical)) -}}
{{- fail (printf "metrics.rules.certificateDays.warning: %v must be more than critical, which is %v" $days.warning $days.critical) -}}
{{- end -}}
{{- if and $metrics.rules.enabled (eq $values.certs.mode "self-managed") (not (lt (float64 $days.warning) 90.0)) -}}
{{- fail (printf "metrics.rules.certificateDays.warning: %v must be less than 90, because the manager renews its certificate 90 days before it expires" $days.warning) -}}
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
{{- fail (printf "certs.certManager.duration: %s must not be longer than %s, otherwise the certificate outlives its authority: set a shorter duration, or issuerRef" $made.duration $longest) -}}
{{- end -}}
{{- if and $metrics.rules.enabled (not (gt $early $warning)) -}}
{{- fail (printf "certs.certManager.renewBefore: %s must be longer than the %v days of metrics.rules.certificateDays.warning, otherwise the alert fires before cert-manager renews the certificate: change one of them" $made.renewBefore $days.warning) -}}
{{- end -}}
{{- end -}}
{{- range $each := list "serviceMonitor" "podMonitor" -}}
{{- $monitor := get $metrics $each -}}
{{- if and $monitor.enabled (not $metrics.enabled) -}}
{{- fail (printf "metrics.%s.enabled: requires metrics.enabled=true" $each) -}}
{{- end -}}
{{- if gt (include "kftrainer.milliseconds" ($monitor.scrapeTimeout | default "0s") | float64) (include "kftrainer.milliseconds" $monitor.interval | float64) -}}
{{- fail (printf "metrics.%s.scrapeTimeout: %s must not be longer than interval, which is %s" $each $monitor.scrapeTimeout $monitor.interval) -}}
{{- end -}}
{{- end -}}
{{- if and $metrics.serviceMonitor.enabled $metrics.podMonitor.enabled -}}
{{- fail "metrics.podMonitor.enabled: metrics.serviceMonitor.enabled is also true, so all metrics would be scraped twice: enable only one of them" -}}
{{- end -}}
{{- if and $metrics.podMonitor.enabled $metrics.secure (not $metrics.podMonitor.authorization) -}}
{{- fail "metrics.podMonitor.authorization: a PodMonitor cannot use the token of Prometheus: set the Secret of another token, use metrics.serviceMonitor, or set metrics.secure=false" -}}
{{- end -}}

{{- $budget := $values.podDisruptionBudget -}}
{{- if $budget.enabled -}}
{{- $replicas := int $values.replicaCount -}}
{{- $least := include "kftrainer.text" $budget.minAvailable -}}
{{- $most := include "kftrainer.text" $budget.maxUnavailable -}}
{{- if and (eq $least "") (eq $most "") -}}
{{- fail "podDisruptionBudget.maxUnavailable: set this or minAvailable, or podDisruptionBudget.enabled=false" -}}
{{- end -}}
{{- if gt $replicas 1 -}}
{{- if and (ne $least "") (ge (include "kftrainer.countOf" (dict "of" $least "replicas" $replicas) | int) $replicas) -}}
{{- fail (printf "podDisruptionBudget.minAvailable: %s is all of the %d replicas, so no node can be drained: set less, or podDisruptionBudget.enabled=false" $least $replicas) -}}
{{- end -}}
{{- if and (eq $least "") (eq (include "kftrainer.countOf" (dict "of" $most "replicas" $replicas) | int) 0) -}}
{{- fail (printf "podDisruptionBudget.maxUnavailable: with %s no node can be drained: set at least 1, or podDisruptionBudget.enabled=false" $most) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
