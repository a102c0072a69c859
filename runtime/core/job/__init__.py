"""A job as a value: its graph, key groups, messages, guarantee, settings and life cycle."""
