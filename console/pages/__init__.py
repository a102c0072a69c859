"""Read models of pages and API: queries, comparisons, evidence, and the restores of snapshots. Read-only."""
