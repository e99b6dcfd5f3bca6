"""The life cycle of pods: workers that start, probe, restart and end containers, and their status.

Decisions are pure functions; the workers carry them out in the sandbox.
"""
