"""The life cycle of one container: what is started, hooks, probes, restarts and its end.

Decisions are pure functions; the runner carries them out in the sandbox.
"""
