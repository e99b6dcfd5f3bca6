"""The life cycle of pods: workers that run their containers in order, and their status.

The status is computed by pure functions from the states of the containers.
"""
