"""From a TrainJob and a runtime to the objects to apply: pure planning, by phases and plugins.

Nothing here waits, writes, or changes what it was given.
"""
