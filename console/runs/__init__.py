"""The execution of runs: their rows, leases and supervisors of job masters and standing stages."""
