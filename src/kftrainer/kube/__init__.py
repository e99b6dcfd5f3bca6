"""The Kubernetes wire protocol: API client, object model and CRD schemas.

It does not depend on controllers or on the kinds of this project.
"""
