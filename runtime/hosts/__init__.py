"""Hosts of the state machines: `driver` applies the coordinator's effects, `worker` a subtask's. `local` and `spark`
merely choose ports and start loops. If a host needs an `if` about barriers, that `if` belongs in the core.
"""
