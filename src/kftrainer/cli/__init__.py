"""The command line. It is the only package that combines all others."""
