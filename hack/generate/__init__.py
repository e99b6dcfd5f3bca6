"""Generates files of the repository from code and schemas: `make generate`."""
