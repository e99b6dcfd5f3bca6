"""Certificates of the webhook and metrics servers: issued, stored, rotated and served.

Decisions are pure functions in `authority`, `ca_bundle` and `trust`; `rotation` does the I/O.
"""
