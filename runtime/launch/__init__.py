"""Launchers of slots: threads of this process, or executors of Spark."""
