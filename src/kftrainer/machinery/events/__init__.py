"""Kubernetes Events: recorded for objects, correlated and rate limited as client-go does.

Watch events, which informers pass to handlers, are in `machinery.controller.events`.
"""
