"""The example pipelines; each module registers a `PIPELINE` by an entry point."""
