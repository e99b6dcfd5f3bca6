"""The API client: verbs, transport, credentials, retries, discovery and watch streams.

Only `transport`, `exchange`, `sessions`, `write_guard` and `credentials` use the HTTP library; its
errors do not leave them.
"""
