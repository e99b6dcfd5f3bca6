"""A controller-runtime for asyncio: caches, queues, controllers, leader election, webhooks.

It does not depend on TrainJobs. Code that is specific to training belongs in `controllers`.
"""
