"""Processes of control planes: start, supervise, and stop with the program that owns them."""
