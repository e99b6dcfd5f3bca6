"""Generates what stands in the repository and is derived from something else: `make generate`."""
