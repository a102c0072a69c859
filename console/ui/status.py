"""States as a shape, a word and a meaning, so that a page never relies on colour alone.

This module alone maps states to meanings; templates and drawings read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from console.checkpoints.models import QueryState
from console.jobs.models import StageState
from runtime.core.job.graph import Guarantee
from runtime.core.job.lifecycle import RunState


class Meaning(StrEnum):
    """The four meanings, and neutral."""

    OK = "ok"
    BUSY = "busy"
    ATTENTION = "attention"
    FAILED = "failed"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True)
class Status:
    """`shape` names a symbol of `weir/_shape.html`."""

    shape: str
    word: str
    meaning: Meaning


def _status(shape: str, word: str, meaning: Meaning) -> Status:
    return Status(shape, word, meaning)


_R = RunState
RUN: Mapping[str, Status] = MappingProxyType(
    {
        _R.QUEUED: _status("half", "Waiting for a worker", Meaning.BUSY),
        _R.STARTING: _status("half", "Starting", Meaning.BUSY),
        _R.WAITING: _status("triangle", "Waiting for slots", Meaning.ATTENTION),
        _R.RUNNING: _status("disc", "Running", Meaning.OK),
        _R.RESTARTING: _status("triangle", "Restarting", Meaning.ATTENTION),
        _R.STOPPING: _status("half", "Stopping with savepoint", Meaning.BUSY),
        _R.DRAINING: _status("half", "Draining", Meaning.BUSY),
        _R.CANCELLING: _status("half", "Cancelling", Meaning.BUSY),
        _R.FINISHED: _status("tick", "Finished", Meaning.OK),
        _R.STOPPED: _status("pause", "Stopped", Meaning.NEUTRAL),
        _R.CANCELED: _status("cross", "Canceled", Meaning.NEUTRAL),
        _R.FAILED: _status("square", "Failed", Meaning.FAILED),
    }
)
NEVER_RAN = _status("ring", "Never started", Meaning.NEUTRAL)

CHECKPOINT: Mapping[str, Status] = MappingProxyType(
    {
        "in_progress": _status("half", "In progress", Meaning.BUSY),
        "completed": _status("disc", "Completed", Meaning.OK),
        "failed": _status("square", "Failed", Meaning.FAILED),
        "aborted": _status("cross", "Aborted", Meaning.NEUTRAL),
    }
)
DISCARDED = _status("ring", "Discarded", Meaning.NEUTRAL)

OPERATION: Mapping[str, Status] = MappingProxyType(
    {
        "queued": _status("half", "Queued", Meaning.BUSY),
        "running": _status("half", "In progress", Meaning.BUSY),
        "succeeded": _status("disc", "Succeeded", Meaning.OK),
        "failed": _status("square", "Failed", Meaning.FAILED),
        "unknown": _status("triangle", "Unknown", Meaning.ATTENTION),
    }
)

VERSION: Mapping[str, Status] = MappingProxyType(
    {
        "compiling": _status("half", "Compiling", Meaning.BUSY),
        "ready": _status("disc", "Ready", Meaning.OK),
        "rejected": _status("square", "Rejected", Meaning.FAILED),
    }
)

REVIEW: Mapping[str, Status] = MappingProxyType(
    {
        "unreviewed": _status("ring", "Not reviewed", Meaning.NEUTRAL),
        "reviewed": _status("disc", "Reviewed", Meaning.OK),
        "waived": _status("pause", "Waived", Meaning.NEUTRAL),
    }
)

ATTEMPT: Mapping[str, Status] = MappingProxyType(
    {
        "": _status("half", "In progress", Meaning.BUSY),
        "running": _status("disc", "Running", Meaning.OK),
        "failed": _status("square", "Failed", Meaning.FAILED),
        "superseded": _status("cross", "Superseded", Meaning.NEUTRAL),
        "ended": _status("tick", "Ended", Meaning.OK),
        "released": _status("pause", "Released", Meaning.NEUTRAL),
        "lost": _status("triangle", "Lost", Meaning.ATTENTION),
    }
)

NOT_STARTED = "not_started"  #: a stage whose run ended before its first process

STAGE: Mapping[str, Status] = MappingProxyType(
    {
        NOT_STARTED: _status("ring", "Not started", Meaning.NEUTRAL),
        StageState.WAITING: _status("triangle", "Waiting for a worker", Meaning.ATTENTION),
        StageState.STARTING: _status("half", "Starting", Meaning.BUSY),
        StageState.RUNNING: _status("disc", "Running", Meaning.OK),
        StageState.RESTARTING: _status("triangle", "Restarting", Meaning.ATTENTION),
        StageState.DONE: _status("tick", "Done", Meaning.OK),
        StageState.ENDED: _status("tick", "Ended", Meaning.NEUTRAL),
        StageState.FAILED: _status("square", "Failed", Meaning.FAILED),
    }
)

QUERY: Mapping[str, Status] = MappingProxyType(
    {
        QueryState.QUEUED: _status("half", "Waiting for a worker", Meaning.BUSY),
        QueryState.RUNNING: _status("half", "Reading", Meaning.BUSY),
        QueryState.SUCCEEDED: _status("disc", "Succeeded", Meaning.OK),
        QueryState.FAILED: _status("square", "Failed", Meaning.FAILED),
        QueryState.CANCELED: _status("cross", "Canceled", Meaning.NEUTRAL),
    }
)

GUARANTEE: Mapping[str, Status] = MappingProxyType(
    {
        Guarantee.EXACTLY_ONCE: _status("disc", "Exactly once", Meaning.OK),
        Guarantee.AT_LEAST_ONCE: _status("triangle", "At least once", Meaning.ATTENTION),
        Guarantee.NONE: _status("triangle", "No guarantee", Meaning.ATTENTION),
    }
)


def run(state: str | None) -> Status:
    return _look_up(RUN, state) if state else NEVER_RAN


def checkpoint(state: str, *, discarded: bool = False) -> Status:
    return DISCARDED if discarded else _look_up(CHECKPOINT, state)


def operation(state: str) -> Status:
    return _look_up(OPERATION, state)


def version(state: str) -> Status:
    return _look_up(VERSION, state)


def review(state: str) -> Status:
    return _look_up(REVIEW, state)


def attempt(outcome: str) -> Status:
    return _look_up(ATTEMPT, outcome)


def stage(state: str) -> Status:
    return _look_up(STAGE, state)


def query(state: str) -> Status:
    return _look_up(QUERY, state)


def guarantee(name: str) -> Status:
    return _look_up(GUARANTEE, name)


def _look_up(table: Mapping[str, Status], state: str) -> Status:
    """The status of `state`; a state unknown to this console is shown under its own name."""
    return table.get(state) or Status("ring", state.replace("_", " ").capitalize(), Meaning.NEUTRAL)
