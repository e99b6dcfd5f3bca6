"""The operator's image: how it is built, and how the result is checked."""
