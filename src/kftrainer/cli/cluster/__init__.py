"""Access to a cluster for several subcommands: connection, pods of the manager, our objects.

`remaining_objects` and `release_runtimes` are parts of `kftrainer purge`.
"""
