"""The manager: starts and stops runnables in order, and runs leader election.

The clock that all components use is also here.
"""
