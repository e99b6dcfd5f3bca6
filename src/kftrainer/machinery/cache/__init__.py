"""Local copies of the objects of a kind, kept by list and watch.

`reflector` decides what to request next, `list_watcher` sends it, `store` holds the objects.
"""
