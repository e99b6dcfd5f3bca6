"""Changes of a TrainJob to the template of its runtime: overrides and runtime patches.

Both kinds are read, validated and merged by the same code. Pure.
"""
