"""Assembles the manager: preflight checks, caches, controllers, webhooks and servers."""
