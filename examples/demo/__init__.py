"""The demo: a job processes a year of flights exactly once, although its processes are killed.

It controls a running stack only by REST, signals and files.
"""
