"""Admission of TrainJobs and runtimes: old and new object in, findings out."""
