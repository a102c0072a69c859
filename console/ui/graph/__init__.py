"""The job graph as a picture: layout (positions), picture (contents), line (progress of the checkpoint)."""
