"""Metrics of TrainJobs: counted by state on the leader, and read at each scrape."""
