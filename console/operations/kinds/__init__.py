"""The kinds of operations, a class each: on jobs, on snapshots, on schedules, and entries of the ledger."""
