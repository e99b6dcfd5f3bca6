"""Prometheus metrics under the names of controller-runtime and client-go, and their server."""
