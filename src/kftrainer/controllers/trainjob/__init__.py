"""The TrainJob controller: plan, apply, write status.

`reconciler` is the I/O; decisions about status, JobSets and failures are pure modules beside it.
"""
