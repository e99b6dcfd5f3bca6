"""Manifests in files: read with positions, validated and planned without a cluster, printed."""
