"""The sandbox: a user namespace in which pods have their own network, mounts and processes."""
