"""A real Prometheus over a real manager: for tests, and for the picture of the dashboard."""
