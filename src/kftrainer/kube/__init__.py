"""Speaks Kubernetes: the wire. Knows no controllers and no TrainJobs."""
