"""An environment with torch from PyPI, and a program that learns a model with it."""
