{{/*
Parts of the runtimes. All take a dict with root.
*/}}

{{/*
The beginning of a runtime, up to mlPolicy. Takes a dict: root, name, framework.
*/}}
{{- define "kftrainer.runtimeHead" -}}
{{- $labels := merge (dict "trainer.kubeflow.org/framework" .framework) (.root.Values.runtimes.labels | default dict) -}}
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata:
  name: {{ .name }}
  labels:
    {{- toYaml $labels | nindent 4 }}
  {{- with .root.Values.runtimes.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* The image of a container. Takes a dict: root, image, path. */}}
{{- define "kftrainer.runtimeImage" -}}
image: {{ include "kftrainer.image" . | quote }}
{{- with .root.Values.runtimes.imagePullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{/* The pull secrets of a pod. */}}
{{- define "kftrainer.runtimePullSecrets" -}}
{{- include "kftrainer.pullSecrets" .root.Values.runtimes.imagePullSecrets -}}
{{- end }}

{{/*
A job with one container. Takes a dict: root, name, image, path and optionally
  step          the step of the job in a TrainJob; none for MPI workers
  container     the name of the container; the default is the name of the job
  rest          other fields of the container, as a dict
  pod           other fields of the pod, as a dict
  job           other fields of the job, as a dict
*/}}
{{- define "kftrainer.runtimeJob" -}}
- name: {{ .name }}
  {{- with .job }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  template:
    {{- with .step }}
    metadata:
      labels:
        trainer.kubeflow.org/trainjob-ancestor-step: {{ . }}
    {{- end }}
    spec:
      template:
        spec:
          {{- with include "kftrainer.runtimePullSecrets" . }}
          {{- . | nindent 10 }}
          {{- end }}
          {{- with .pod }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
          containers:
          - name: {{ .container | default .name }}
            {{- include "kftrainer.runtimeImage" . | nindent 12 }}
            {{- /* The status of a TrainJob that failed ends with the last line of this message. */}}
            terminationMessagePolicy: FallbackToLogsOnError
            {{- with .rest }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
{{- end }}
