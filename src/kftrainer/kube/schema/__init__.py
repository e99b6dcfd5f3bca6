"""CRD schemas offline: structure, values, defaults, metadata and CEL rules, as the server checks.

Everything here is pure; `kftrainer validate` and admission use it.
"""
