"""Admission rules for TrainJobs and runtimes, each with a name in `rules`. Pure."""
