"""The pipelines that ship with Weir; each module offers one `PIPELINE` through an entry point."""
