"""Operator state: keyed, broadcast and list state, with its snapshots and its restore.

Rows are found by the key index, live in typed columns or as Python objects, and are stored as segment files.
`SubtaskState` joins these parts for one subtask.
"""
