"""The API client: verbs, transport, credentials, retries, discovery and watch streams.

Only `transport`, `exchange` and `sessions` use the HTTP library; its errors do not leave them.
"""
