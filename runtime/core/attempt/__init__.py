"""The attempt of a run: its slots, operations and end. Production and simulator run the same machine."""
