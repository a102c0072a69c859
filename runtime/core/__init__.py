"""The sans-I/O half of the runtime: state machines that turn events into effects.

1. The core returns effects; its host (a task, the job master, the simulator) performs them. The only entry of a machine
   is `handle(event) -> list[Effect]`.
2. Time, randomness and identity arrive inside events.
3. State changes only in `handle`.
4. Late, repeated and lost-race messages are values, not errors.
5. Every irreversible act needs a permit.
"""
