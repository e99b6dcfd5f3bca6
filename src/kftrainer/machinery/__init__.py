"""Keeps things reconciled: queues, informers, controllers, election. Knows nothing of training."""
