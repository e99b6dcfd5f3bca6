"""The command line, one module per command: the only place where everything is put together."""
