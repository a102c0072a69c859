"""Views of checkpoints: pages of one and of all of a job."""
