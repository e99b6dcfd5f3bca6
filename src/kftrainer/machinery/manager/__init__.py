"""The manager: starts and stops runnables in order, and takes part in leader election.

The clock that everything is given is here, too.
"""
