"""Plots of a job's history on one time axis, drawn on the server as values for templates."""
