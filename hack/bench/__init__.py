"""Measures what is claimed to be fast: `make bench`."""
