"""Reconcilers of TrainJobs and runtimes: thin I/O around the planning of `runtime`."""
