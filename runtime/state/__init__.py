"""What an operator remembers, and how it gets into a snapshot and back.

Read: hashing (key -> key group), factorise (the distinct keys of a batch), keycodes, interned and index (key -> slot),
schema, columns and table (typed columns over slots), rows and segments (the way to bytes and back), chain (which
segments make a state), lists, broadcast, and store, which joins them.
"""
