"""kftrainer: a Kubernetes operator for distributed training, speaking Kubeflow Trainer v2's API."""
