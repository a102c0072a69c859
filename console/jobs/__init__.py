"""Definitions: pipelines, jobs and versions, their compilation, and the models of their runs."""
