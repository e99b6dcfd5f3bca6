"""Kubernetes Events: recorded for objects, correlated and rate limited as client-go does."""
