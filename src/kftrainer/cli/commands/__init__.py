"""The subcommands of `kftrainer`, one module each, and the modules that they share.

Not subcommands: `cluster` and `manager_pods` (access to a cluster and its manager),
`remaining_objects` and `release_runtimes` (parts of `purge`).
"""
