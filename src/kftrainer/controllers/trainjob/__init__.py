"""The TrainJob controller: get, plan, apply, write status.

`reconciler` has these steps; `planner`, `apply` and `status_writer` do their I/O. Decisions about
status, JobSets and failures are pure modules beside them.
"""
