"""The plugin framework: extension points, their order, and how plugins are loaded.

The built-in plugins are listed in `kftrainer.runtime.plugins`.
"""
