"""The deciding half of the runtime. Read: ids, messages, keygroups, graph, checkpoint, events, effects; then the
machines alignment, watermarks, flow, subtask; then commit, lifecycle, recovery, coordinator.

Five laws:
1. The core decides; hosts do. Every machine has one entrance `handle(event) -> list[Effect]`.
2. Time, randomness and identity arrive inside events.
3. State changes only in `handle`.
4. Late, repeated and lost-race messages are values, not errors.
5. Nothing irreversible without a permit.
"""
