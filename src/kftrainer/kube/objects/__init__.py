"""Kubernetes objects: kinds and keys, metadata, typed models, field errors, quantities, patches.

Everything here is pure.
"""
