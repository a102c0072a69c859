"""Passes in the background: the reconciler, active operations, schedules, orphans, old folders and old rows."""
