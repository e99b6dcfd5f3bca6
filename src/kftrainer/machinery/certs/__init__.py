"""Certificates of the webhook and metrics servers: issued, stored, rotated and served.

Decisions are pure functions in `authority` and `ca_bundle`; `rotation` does the I/O.
"""
