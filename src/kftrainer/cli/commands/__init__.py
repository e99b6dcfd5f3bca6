"""The subcommands of `kftrainer`, one module each, and modules that they share."""
