{{/*
The runtimes, each a document that `kftrainer validate -f` accepts. All take the root, except
those that several runtimes share.
*/}}

{{/* The other fields of a container: its resources, if set. Takes a dict: resources. */}}
{{- define "kftrainer.resourcesOnly" -}}
{{- with .resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "kftrainer.runtime.plain" -}}
{{- $values := .Values.runtimes.plain -}}
{{ include "kftrainer.runtimeHead" (dict "root" . "name" "plain" "framework" "plain") }}
spec:
  mlPolicy:
    numNodes: 1
  template:
    spec:
      replicatedJobs:
      {{- include "kftrainer.runtimeJob" (dict "root" . "name" "node" "step" "trainer" "image" $values.image "path" "runtimes.plain.image" "rest" (include "kftrainer.resourcesOnly" $values | fromYaml)) | nindent 6 }}
{{- end }}

{{- define "kftrainer.runtime.torchDistributed" -}}
{{- $values := .Values.runtimes.torchDistributed -}}
{{ include "kftrainer.runtimeHead" (dict "root" . "name" "torch-distributed" "framework" "torch") }}
spec:
  mlPolicy:
    numNodes: 1
    torch: {}
  template:
    spec:
      replicatedJobs:
      {{- include "kftrainer.runtimeJob" (dict "root" . "name" "node" "step" "trainer" "image" $values.image "path" "runtimes.torchDistributed.image" "rest" (include "kftrainer.resourcesOnly" $values | fromYaml)) | nindent 6 }}
{{- end }}

{{- define "kftrainer.runtime.torchDistributedWithCache" -}}
{{- $values := .Values.runtimes.torchDistributedWithCache -}}
{{- $path := "runtimes.torchDistributedWithCache" -}}
{{- $name := dict "name" "TRAIN_JOB_NAME" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.labels['jobset.sigs.k8s.io/jobset-name']")) -}}
{{- $cache := dict "name" "CACHE_IMAGE" "value" (include "kftrainer.image" (dict "root" . "image" $values.cacheImage "path" (printf "%s.cacheImage" $path))) -}}
{{ include "kftrainer.runtimeHead" (dict "root" . "name" "torch-distributed-with-cache" "framework" "torch") }}
spec:
  mlPolicy:
    numNodes: 1
    torch: {}
  template:
    spec:
      replicatedJobs:
      {{- include "kftrainer.runtimeJob" (dict
            "root" . "name" "dataset-initializer" "step" "dataset-initializer"
            "image" $values.initializerImage "path" (printf "%s.initializerImage" $path)
            "job" (dict "replicas" 1)
            "pod" (dict "serviceAccountName" "kubeflow-trainer-cache-initializer")
            "rest" (dict "env" (list $cache $name))
          ) | nindent 6 }}
      {{- include "kftrainer.runtimeJob" (dict
            "root" . "name" "node" "step" "trainer"
            "image" $values.image "path" (printf "%s.image" $path)
            "job" (dict "dependsOn" (list (dict "name" "dataset-initializer" "status" "Complete")))
            "rest" (merge (dict "env" (list $name)) (include "kftrainer.resourcesOnly" $values | fromYaml))
          ) | nindent 6 }}
{{- end }}

{{- define "kftrainer.runtime.deepspeedDistributed" -}}
{{- include "kftrainer.runtime.mpi" (dict "root" . "framework" "deepspeed" "values" .Values.runtimes.deepspeedDistributed "path" "runtimes.deepspeedDistributed.image") -}}
{{- end }}

{{- define "kftrainer.runtime.mlxDistributed" -}}
{{- include "kftrainer.runtime.mpi" (dict "root" . "framework" "mlx" "values" .Values.runtimes.mlxDistributed "path" "runtimes.mlxDistributed.image") -}}
{{- end }}

{{/*
An MPI runtime: workers that run an SSH server, and a launcher that is one of the nodes.
Takes a dict: root, framework, values, path.
*/}}
{{- define "kftrainer.runtime.mpi" -}}
{{- $common := merge (dict "securityContext" (dict "runAsUser" 1000)) (include "kftrainer.resourcesOnly" .values | fromYaml) -}}
{{- $daemon := dict
      "command" (list "/usr/sbin/sshd")
      "args" (list "-De" "-f" "/home/mpiuser/.sshd_config")
      "readinessProbe" (dict "tcpSocket" (dict "port" 2222) "initialDelaySeconds" 5) -}}
{{- $pod := dict "securityContext" (dict "fsGroup" 1000) -}}
{{ include "kftrainer.runtimeHead" (dict "root" .root "name" (printf "%s-distributed" .framework) "framework" .framework) }}
spec:
  mlPolicy:
    numNodes: 1
    mpi:
      numProcPerNode: 1
      mpiImplementation: OpenMPI
      sshAuthMountPath: /home/mpiuser/.ssh
      runLauncherAsNode: true
  template:
    spec:
      network:
        publishNotReadyAddresses: true
      successPolicy:
        operator: All
        targetReplicatedJobs: [launcher]
      replicatedJobs:
      {{- include "kftrainer.runtimeJob" (dict
            "root" .root "name" "node" "image" .values.image "path" .path
            "pod" $pod "rest" (merge $daemon $common)
          ) | nindent 6 }}
      {{- include "kftrainer.runtimeJob" (dict
            "root" .root "name" "launcher" "container" "node" "step" "trainer" "image" .values.image "path" .path
            "job" (dict "dependsOn" (list (dict "name" "node" "status" "Ready")))
            "pod" $pod "rest" $common
          ) | nindent 6 }}
{{- end }}

{{- define "kftrainer.runtime.llama1b" -}}
{{- include "kftrainer.runtime.torchtune" (dict "root" . "name" "torchtune-llama3.2-1b" "config" "llama3_2/1B" "model" "hf://meta-llama/Llama-3.2-1B-Instruct" "tokenizer" (list "tokenizer.path=/workspace/model/original/tokenizer.model")) -}}
{{- end }}

{{- define "kftrainer.runtime.llama3b" -}}
{{- include "kftrainer.runtime.torchtune" (dict "root" . "name" "torchtune-llama3.2-3b" "config" "llama3_2/3B" "model" "hf://meta-llama/Llama-3.2-3B-Instruct" "tokenizer" (list "tokenizer.path=/workspace/model/original/tokenizer.model")) -}}
{{- end }}

{{- define "kftrainer.runtime.qwen1b5" -}}
{{- include "kftrainer.runtime.torchtune" (dict "root" . "name" "torchtune-qwen2.5-1.5b" "config" "qwen2_5/1.5B" "model" "hf://Qwen/Qwen2.5-1.5B-Instruct" "tokenizer" (list "tokenizer.path=/workspace/model/vocab.json" "tokenizer.merges_file=/workspace/model/merges.txt")) -}}
{{- end }}

{{/*
A runtime that downloads a dataset and a model, and fine-tunes the model. Takes a dict: root, name,
config, model, tokenizer.
*/}}
{{- define "kftrainer.runtime.torchtune" -}}
{{- $values := .root.Values.runtimes.torchtune -}}
{{- $path := "runtimes.torchtune" -}}
{{- $mounts := list (dict "name" "initializer" "mountPath" "/workspace") -}}
{{- $command := concat
      (list "tune" "run" "--rdzv_endpoint=localhost:29500" "full_finetune_distributed" "--config" (printf "%s_full" .config)
        "dataset=torchtune.datasets.instruct_dataset" "dataset.source=parquet" "dataset.data_dir=/workspace/dataset/data"
        "output_dir=/workspace/output")
      .tokenizer
      (list "checkpointer.checkpoint_dir=/workspace/model") -}}
{{ include "kftrainer.runtimeHead" (dict "root" .root "name" .name "framework" "torchtune") }}
spec:
  mlPolicy:
    numNodes: 1
    torch:
      numProcPerNode: auto
  template:
    spec:
      volumeClaimPolicies:
      - templates:
        - metadata:
            name: initializer
          spec:
            accessModes: {{ $values.storage.accessModes | toJson }}
            {{- with $values.storage.className }}
            storageClassName: {{ . | quote }}
            {{- end }}
            resources:
              requests:
                storage: {{ $values.storage.size | quote }}
      replicatedJobs:
      {{- include "kftrainer.runtimeJob" (dict
            "root" .root "name" "dataset-initializer" "step" "dataset-initializer"
            "image" $values.datasetInitializerImage "path" (printf "%s.datasetInitializerImage" $path)
            "rest" (dict "env" (list (dict "name" "STORAGE_URI" "value" "hf://tatsu-lab/alpaca")) "volumeMounts" $mounts)
          ) | nindent 6 }}
      {{- include "kftrainer.runtimeJob" (dict
            "root" .root "name" "model-initializer" "step" "model-initializer"
            "image" $values.modelInitializerImage "path" (printf "%s.modelInitializerImage" $path)
            "rest" (dict "env" (list (dict "name" "STORAGE_URI" "value" .model)) "volumeMounts" $mounts)
          ) | nindent 6 }}
      {{- include "kftrainer.runtimeJob" (dict
            "root" .root "name" "node" "step" "trainer"
            "image" $values.image "path" (printf "%s.image" $path)
            "job" (dict "dependsOn" (list (dict "name" "dataset-initializer" "status" "Complete") (dict "name" "model-initializer" "status" "Complete")))
            "rest" (merge (dict "command" $command "volumeMounts" $mounts) (include "kftrainer.resourcesOnly" $values | fromYaml))
          ) | nindent 6 }}
{{- end }}

{{/* The enabled runtimes, as a YAML map from file name to file content. */}}
{{- define "kftrainer.runtimeFiles" -}}
{{- $values := .Values.runtimes -}}
{{- $switches := dict
      "plain" $values.plain
      "torchDistributed" $values.torchDistributed
      "torchDistributedWithCache" $values.torchDistributedWithCache
      "deepspeedDistributed" $values.deepspeedDistributed
      "mlxDistributed" $values.mlxDistributed
      "llama1b" $values.torchtune.llama1b
      "llama3b" $values.torchtune.llama3b
      "qwen1b5" $values.torchtune.qwen1b5 -}}
{{- $files := dict -}}
{{- $root := . -}}
{{- range $key, $section := $switches -}}
{{- if $section.enabled -}}
{{- $text := include (printf "kftrainer.runtime.%s" $key) $root -}}
{{- $_ := set $files (printf "%s.yaml" (fromYaml $text).metadata.name) $text -}}
{{- end -}}
{{- end -}}
{{- if $files }}{{ toYaml $files }}{{ end -}}
{{- end }}
