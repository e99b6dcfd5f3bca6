"""The subcommands of `kftrainer`, one module each."""
