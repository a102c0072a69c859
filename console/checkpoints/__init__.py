"""Checkpoints as the operator sees them: written by the job master, reviewed by people."""
