"""The job graph as a picture: layout (where), picture (what), weir line (how far the checkpoint has come)."""
