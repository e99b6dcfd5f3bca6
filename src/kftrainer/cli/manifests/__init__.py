"""Manifests in files: read with positions, validate and plan without a cluster, print."""
