"""Pipelines, jobs, their versions, their runs, and the supervisor of a run."""
