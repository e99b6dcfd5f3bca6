"""One container: the plan of its root file system, its shim and its log."""
