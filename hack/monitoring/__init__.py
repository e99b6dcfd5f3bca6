"""Prometheus and managers for tests, and for the picture of the dashboard."""
