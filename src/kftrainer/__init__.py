"""Kubernetes operator for distributed training with the API of Kubeflow Trainer v2."""
