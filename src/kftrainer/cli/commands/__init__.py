"""The subcommands of `kftrainer`, one module each, and what some of them share."""
