"""Planning: from a TrainJob and its runtime to the objects to apply. Pure.

Plugins do the work in the phases of `framework`; `runtimes` is the entry point.
"""
