"""How a job is written and compiled: builder, kinds of streams, plan, and the registry of pipelines."""
