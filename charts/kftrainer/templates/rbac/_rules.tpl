{{/*
The manager's permissions, no more than it uses: a test compares them with the API server's audit
log. Server-side apply takes `patch`, and `create` if the object does not exist. Which objects may be
written is limited further by templates/policy.
*/}}

{{/* Permissions in the watched namespaces. */}}
{{- define "kftrainer.namespacedRules" -}}
# TrainJobs are reconciled. Only their status is written.
- apiGroups: [trainer.kubeflow.org]
  resources: [trainjobs]
  verbs: [list, watch]
- apiGroups: [trainer.kubeflow.org]
  resources: [trainjobs/status]
  verbs: [patch]
{{- if .Values.rbac.ownerReferencesPermissionEnforcement }}
# Created objects set blockOwnerDeletion, for which OwnerReferencesPermissionEnforcement requires
# this permission.
- apiGroups: [trainer.kubeflow.org]
  resources: [trainjobs/finalizers]
  verbs: [update]
{{- end }}
# Runtimes are read from the cache, and from the API server before one is reported as missing.
{{- if .Values.watchNamespaces }} A
# finalizer that an earlier manager added is removed.
{{- else }} A
# runtime has a finalizer while TrainJobs use it.
{{- end }}
- apiGroups: [trainer.kubeflow.org]
  resources: [trainingruntimes]
  verbs: [get, list, watch, patch]
# The spec with which a TrainJob begins is kept in a ControllerRevision, and deleted when no TrainJob
# refers to it. Those with the label trainer.kubeflow.org/runtime-kind are read, but RBAC cannot
# limit permissions to a label; managerPolicy denies writes to others.
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, watch, create, delete]
# Each TrainJob runs as a JobSet. If its name is taken, the live JobSet is read.
- apiGroups: [jobset.x-k8s.io]
  resources: [jobsets]
  verbs: [get, list, watch, create, patch, delete]
# The templates of a TrainJob's resource claims: their devices determine the number of processes.
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [list, watch]
# The status of Jobs shows when the first pods of a JobSet run.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch]
# When a JobSet or one of its Jobs fails, its pods are listed once: the status of the TrainJob reports
# which failed first, with its exit code and last message.
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
# Failures of TrainJobs are reported as Events; the count of repeated ones is patched. Pods that are
# not created, because Pod Security or a quota forbids them, are only reported by Events of their
# Jobs, so these are watched.
- apiGroups: [""]
  resources: [events]
  verbs: [list, watch, create, patch]
{{- if include "kftrainer.runsPlugin" (dict "root" . "plugin" "MPI") }}
# MPI creates the Secret with the SSH keys of a TrainJob, and finds out by an empty patch in a dry
# run whether it still exists. There is no permission to get, list or watch Secrets; managerPolicy
# denies patches, also empty ones, of Secrets that do not belong to a TrainJob.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, patch]
# MPI creates the ConfigMap with the hostfile of a TrainJob, and replaces it while no pods run. Only
# the metadata of ConfigMaps is read, but RBAC has no separate permission for it.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch]
{{- end }}
{{- if include "kftrainer.runsPlugin" (dict "root" . "plugin" "CoScheduling") }}
# CoScheduling creates the PodGroup of a TrainJob.
- apiGroups: [scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, list, watch, create, patch]
{{- end }}
{{- if include "kftrainer.runsPlugin" (dict "root" . "plugin" "Volcano") }}
# Volcano creates the PodGroup of a TrainJob.
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [get, list, watch, create, patch]
{{- end }}
{{- if include "kftrainer.runsGangs" . }}
# The minimum resources of a PodGroup include the default requests of the namespace.
- apiGroups: [""]
  resources: [limitranges]
  verbs: [list, watch]
{{- end }}
{{- with .Values.rbac.extraNamespacedRules }}
# From rbac.extraNamespacedRules.
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Whether a plugin that creates PodGroups is enabled; empty if not. */}}
{{- define "kftrainer.runsGangs" -}}
{{- include "kftrainer.runsPlugin" (dict "root" . "plugin" "CoScheduling") -}}
{{- include "kftrainer.runsPlugin" (dict "root" . "plugin" "Volcano") -}}
{{- end }}

{{/* Permissions on cluster-scoped kinds. */}}
{{- define "kftrainer.clusterRules" -}}
{{- $verbs := list "get" "list" "watch" "patch" -}}
{{- if .Values.runtimes.enabled }}{{ $verbs = append $verbs "create" }}{{ end -}}
{{- if and .Values.runtimes.enabled (not .Values.watchNamespaces) }}{{ $verbs = append $verbs "delete" }}{{ end -}}
{{- if .Values.watchNamespaces }}
# ClusterTrainingRuntimes are read; a finalizer that an earlier manager added is removed.
{{- else }}
# ClusterTrainingRuntimes are read. A runtime has a finalizer while TrainJobs use it.
{{- end }}
{{- if .Values.runtimes.enabled }}
# Those of this chart are created{{ if .Values.watchNamespaces }} and{{ else }},{{ end }} replaced when they change{{ if not .Values.watchNamespaces }}, and deleted when the chart no longer contains them and no TrainJob uses them{{ end }}.
{{- end }}
- apiGroups: [trainer.kubeflow.org]
  resources: [clustertrainingruntimes]
  verbs: [{{ join ", " $verbs }}]
{{- if include "kftrainer.runsGangs" . }}
# The minimum resources of a PodGroup include the overhead of the RuntimeClass.
- apiGroups: [node.k8s.io]
  resources: [runtimeclasses]
  verbs: [list, watch]
{{- end }}
{{- if include "kftrainer.runsPlugin" (dict "root" . "plugin" "Volcano") }}
# Volcano: a TrainJob whose PriorityClass does not exist is rejected.
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [{{ if .Values.webhook.enabled }}get, {{ end }}list, watch]
{{- end }}
{{- if and .Values.webhook.enabled (eq .Values.certs.mode "self-managed") }}
# The caBundle of the manager's own webhook configurations is updated when its certificate authority
# changes.
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations]
  resourceNames: [validator.trainer.kubeflow.org]
  verbs: [get, list, watch, update]
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations]
  resourceNames: [defaulter.trainer.kubeflow.org]
  verbs: [get, list, watch, update]
{{- end }}
{{- if and .Values.metrics.enabled .Values.metrics.secure }}
# Requests for metrics are authenticated and authorized by the API server.
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}
{{- with .Values.rbac.extraRules }}
# From rbac.extraRules.
{{ toYaml . }}
{{- end }}
{{- end }}
