"""The manager put together: preflight checks, caches, controllers, webhooks and servers."""
