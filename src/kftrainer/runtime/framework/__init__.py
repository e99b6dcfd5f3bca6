"""The plugin framework: extension points, their order, and how plugins are loaded.

It names no plugin.
"""
