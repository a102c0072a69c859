"""The restore of a snapshot: its origin and effects, clones, new runs, and the check of its files."""
