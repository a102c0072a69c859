"""Events and effects of the machines of a running job: of its master, and of its subtasks in slots on Spark too."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pytest

from runtime.core.attempt.events import AttemptEvent
from runtime.core.attempt.machine import AttemptMachine
from runtime.core.job.ids import ChannelId, CheckpointId, OperatorId
from runtime.core.subtask.events import MessageArrived
from runtime.core.subtask.subtask import Subtask
from runtime.dataflow.plan import CompiledJob
from runtime.ports import Operator
from tests.shared import Shared

E = TypeVar("E")


@dataclass(frozen=True)
class Turn:
    """An event of a subtask with its effects."""

    uid: str
    index: int
    event: Any
    effects: tuple[Any, ...]
    phase: str  #: after the event
    blocked: frozenset[ChannelId]  #: before the event
    process: int
    thread: int

    @property
    def message(self) -> Any:
        """The message that arrived; None for another event."""
        return self.event.message if isinstance(self.event, MessageArrived) else None


class Trace(Shared):
    """The turns of all subtasks of a job; those of a slot are in order."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._by_subtask: dict[tuple[str, int], list[Turn]] = {}

    def add(self, turn: Turn) -> None:
        self.turns.append(turn)
        self._by_subtask.setdefault((turn.uid, turn.index), []).append(turn)

    def of(self, uid: str, index: int) -> list[Turn]:
        return list(self._by_subtask.get((uid, index), ()))

    def ended(self) -> set[str]:
        """The operators of which a subtask has ended."""
        return {turn.uid for turn in list(self.turns) if turn.phase == "ended"}


@dataclass(frozen=True)
class MasterTurn:
    """An event of an attempt with its effects, and what the coordinator held after it."""

    token: int
    event: Any  #: an `AttemptEvent`
    effects: tuple[Any, ...]
    thread: int
    pending: tuple[CheckpointId, ...]
    waiting: int  #: queued requests
    next_trigger: int | None  #: of the periodic schedule, ms; None: stopped


class Journal(list[MasterTurn]):
    """The turns of all attempts of a job, in order."""

    def events(self, kind: type[E]) -> list[E]:
        return [turn.event for turn in self if isinstance(turn.event, kind)]

    def effects(self, kind: type[E]) -> list[E]:
        return [effect for turn in self for effect in turn.effects if isinstance(effect, kind)]

    def turn_of(self, kind: type, **fields: Any) -> MasterTurn:
        """The first turn of such an event with these fields."""
        return next(
            turn
            for turn in self
            if isinstance(turn.event, kind) and all(getattr(turn.event, k) == v for k, v in fields.items())
        )


_handle: Callable[[Subtask, Any], list[Any]] = Subtask.handle
_traces: dict[OperatorId, Trace] = {}  #: of this process, by operator


def _recorded(machine: Subtask, event: Any) -> list[Any]:
    blocked = machine.blocked_channels
    effects = _handle(machine, event)
    trace, subtask = _traces.get(machine.spec.id.operator), machine.spec.id
    if trace is not None:
        place = os.getpid(), threading.get_ident()
        trace.add(Turn(subtask.operator, subtask.index, event, tuple(effects), machine.phase, blocked, *place))
    return effects


def _create(create: Callable[[], Operator], uids: Mapping[OperatorId, Any], trace: Trace) -> Operator:
    """Called in the slot, before the first event of any of its subtasks."""
    _traces.update(dict.fromkeys(uids, trace))
    setattr(Subtask, "handle", _recorded)  # noqa: B010  # mypy refuses to assign to a method
    return create()


def traced(job: CompiledJob, trace: Trace) -> CompiledJob:
    """The job; each slot in which one of its operators is created records all of its subtasks."""
    uids = dict.fromkeys((*job.operators, *job.sources))
    operators = {uid: partial(_create, create, uids, trace) for uid, create in job.operators.items()}
    return replace(job, operators=operators)


@contextmanager
def observed() -> Iterator[Journal]:
    """Records the master in this process. Ends the recording of slots that are threads of it."""
    journal = Journal()
    handle = AttemptMachine.handle

    def recorded(machine: AttemptMachine, event: AttemptEvent) -> list[Any]:
        effects, coordinator = handle(machine, event), machine.coordinator
        pending, waiting = tuple(coordinator.pending), len(coordinator._queue.waiting)
        token, thread = machine._settings.token, threading.get_ident()
        trigger = coordinator._trigger_schedule.next_at
        journal.append(MasterTurn(token, event, tuple(effects), thread, pending, waiting, trigger))
        return effects

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AttemptMachine, "handle", recorded)
        patch.setattr(Subtask, "handle", Subtask.handle)  # restored at the end
        try:
            yield journal
        finally:
            _traces.clear()
