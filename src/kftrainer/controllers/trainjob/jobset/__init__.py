"""Decisions about the JobSet of a TrainJob: which one is its own, and what to change in it.

Also what remains of a deleted JobSet, and the pods of a JobSet that failed or were refused.
"""
