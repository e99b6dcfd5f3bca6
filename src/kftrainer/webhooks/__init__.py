"""Admission of TrainJobs and runtimes: validators, a defaulter, their registration and metrics.

The validation rules themselves are in `kftrainer.runtime.validation`.
"""
