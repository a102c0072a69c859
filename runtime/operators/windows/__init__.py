"""Event-time windows, and their pre-aggregation before the shuffle."""
