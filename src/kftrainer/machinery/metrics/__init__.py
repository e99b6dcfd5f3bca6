"""Prometheus metrics with the names of controller-runtime and client-go, and their server.

Metrics are declared in `registry`; `server` and `authorization` expose them.
"""
