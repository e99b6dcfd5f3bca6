"""Admission of TrainJobs and runtimes: validators, their registration and metrics.

The validation rules themselves are in `kftrainer.runtime.validation`.
"""
