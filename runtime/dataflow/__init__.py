"""How a job is written and compiled: builder, plan, and the registry of pipelines."""
