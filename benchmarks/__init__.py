"""Weir and its peers, measured side by side: `python -m benchmarks`. See README.md beside this file."""
