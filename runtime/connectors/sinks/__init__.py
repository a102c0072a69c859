"""Where records go. Each sink says which guarantee it gives in `guarantee`."""
