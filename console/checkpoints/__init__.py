"""Checkpoint rows, written by the job master and reviewed by people."""
