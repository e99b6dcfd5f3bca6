"""From TrainJob to manifests: pure planning by phases and plugins. Knows nothing of queues."""
