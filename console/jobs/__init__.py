"""Pipelines, jobs, versions and runs, and the supervisors of runs and standing stages."""
