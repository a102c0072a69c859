"""Tables with a transaction log: Delta Lake."""
