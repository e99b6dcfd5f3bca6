"""The runtimes that Kubeflow Trainer ships, with the fields that are served."""

from typing import Any

from tests.support.objects import Object, replicated_job

IMAGES = "ghcr.io/kubeflow/trainer"
INITIALIZER_MOUNT = [{"name": "initializer", "mountPath": "/workspace"}]
CLAIM = {
    "metadata": {"name": "initializer"},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "20Gi"}},
    },
}


def cluster_runtime(name: str, framework: str, policy: Object, **template: Any) -> Object:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name, "labels": {"trainer.kubeflow.org/framework": framework}},
        "spec": {"mlPolicy": {"numNodes": 1, **policy}, "template": {"spec": template}},
    }


def torch(policy: Object) -> Object:
    image = "pytorch/pytorch:2.7.1-cuda12.8-cudnn9-runtime"
    jobs = [replicated_job("node", image=image)]
    return cluster_runtime("torch-distributed", "torch", {"torch": policy}, replicatedJobs=jobs)


def torch_with_cache() -> Object:
    name = {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/jobset-name']"}
    env = [{"name": "TRAIN_JOB_NAME", "valueFrom": {"fieldRef": name}}]
    cache = {"name": "CACHE_IMAGE", "value": f"{IMAGES}/data-cache"}
    initializer = replicated_job("dataset-initializer", "dataset-initializer", env=[cache, *env])
    pod = initializer["template"]["spec"]["template"]["spec"]
    pod["serviceAccountName"] = "kubeflow-trainer-cache-initializer"
    node = replicated_job("node", env=env)
    node["dependsOn"] = [{"name": "dataset-initializer", "status": "Complete"}]
    jobs = [{**initializer, "replicas": 1}, node]
    name_ = "torch-distributed-with-cache"
    return cluster_runtime(name_, "torch", {"torch": {}}, replicatedJobs=jobs)


def mpi(framework: str) -> Object:
    policy = {
        "numProcPerNode": 1,
        "mpiImplementation": "OpenMPI",
        "sshAuthMountPath": "/home/mpiuser/.ssh",
        "runLauncherAsNode": True,
    }
    image = f"{IMAGES}/{framework}-runtime"
    user = {"runAsUser": 1000}
    node = replicated_job(
        "node",
        None,
        image=image,
        securityContext=user,
        command=["/usr/sbin/sshd"],
        args=["-De", "-f", "/home/mpiuser/.sshd_config"],
        readinessProbe={"tcpSocket": {"port": 2222}, "initialDelaySeconds": 5},
    )
    launcher = replicated_job("launcher", image=image, securityContext=user)
    launcher["dependsOn"] = [{"name": "node", "status": "Ready"}]
    for job in (node, launcher):
        pod = job["template"]["spec"]["template"]["spec"]
        pod["securityContext"] = {"fsGroup": 1000}
        pod["containers"][0]["name"] = "node"
    return cluster_runtime(
        f"{framework}-distributed",
        framework,
        {"mpi": policy},
        network={"publishNotReadyAddresses": True},
        successPolicy={"operator": "All", "targetReplicatedJobs": ["launcher"]},
        replicatedJobs=[node, launcher],
    )


def torchtune(name: str, config: str, model: str, tokenizer: list[str]) -> Object:
    def initializer(step: str, address: str) -> Object:
        return replicated_job(
            step,
            step,
            image=f"{IMAGES}/{step}",
            env=[{"name": "STORAGE_URI", "value": address}],
            volumeMounts=INITIALIZER_MOUNT,
        )

    node = replicated_job(
        "node",
        image=f"{IMAGES}/torchtune-trainer",
        command=[
            "tune",
            "run",
            "--rdzv_endpoint=localhost:29500",
            "full_finetune_distributed",
            "--config",
            f"{config}_full",
            "dataset=torchtune.datasets.instruct_dataset",
            "dataset.source=parquet",
            "dataset.data_dir=/workspace/dataset/data",
            "output_dir=/workspace/output",
            *tokenizer,
            "checkpointer.checkpoint_dir=/workspace/model",
        ],
        volumeMounts=INITIALIZER_MOUNT,
        resources={"limits": {"nvidia.com/gpu": "2"}},
    )
    steps = ("dataset-initializer", "model-initializer")
    node["dependsOn"] = [{"name": step, "status": "Complete"} for step in steps]
    return cluster_runtime(
        name,
        "torchtune",
        {"torch": {"numProcPerNode": "auto"}},
        volumeClaimPolicies=[{"templates": [CLAIM]}],
        replicatedJobs=[
            initializer("dataset-initializer", "hf://tatsu-lab/alpaca"),
            initializer("model-initializer", model),
            node,
        ],
    )


LLAMA_TOKENIZER = ["tokenizer.path=/workspace/model/original/tokenizer.model"]
QWEN_TOKENIZER = [
    "tokenizer.path=/workspace/model/vocab.json",
    "tokenizer.merges_file=/workspace/model/merges.txt",
]

SHIPPED = (
    torch({}),
    torch_with_cache(),
    mpi("deepspeed"),
    mpi("mlx"),
    torchtune(
        "torchtune-llama3.2-1b",
        "llama3_2/1B",
        "hf://meta-llama/Llama-3.2-1B-Instruct",
        LLAMA_TOKENIZER,
    ),
    torchtune(
        "torchtune-llama3.2-3b",
        "llama3_2/3B",
        "hf://meta-llama/Llama-3.2-3B-Instruct",
        LLAMA_TOKENIZER,
    ),
    torchtune(
        "torchtune-qwen2.5-1.5b",
        "qwen2_5/1.5B",
        "hf://Qwen/Qwen2.5-1.5B-Instruct",
        QWEN_TOKENIZER,
    ),
)
