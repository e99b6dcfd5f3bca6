"""The kubelet API, with which the API server reads logs.

Requests need a client certificate, whose user the API server must authorize.
"""
