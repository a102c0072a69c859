"""Operator state: keyed, broadcast and list state, and the way from there to snapshots and back.

Rows are found by the key index, live in typed columns or as Python objects, and are stored as segment files.
`SubtaskState` joins these parts for one subtask.
"""
