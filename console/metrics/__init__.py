"""The history of live numbers of runs: its tables, their partitions, roll-up, retention and queries."""
