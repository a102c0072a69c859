"""The pipelines that ship with Weir; each module registers a `PIPELINE` by an entry point."""
