"""The command line: the only place where all packages are put together."""
