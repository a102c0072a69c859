"""From key values to row ids of a table, vectorised: hashes, key codes, and the key index."""
