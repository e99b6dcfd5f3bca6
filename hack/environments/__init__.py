"""Virtual environments that take the place of images on process nodes.

The demo, `make dev` and the tests share them.
"""
