"""States as a shape, a word and a meaning, so that a page never relies on colour alone.

This module alone maps states to meanings; templates and drawings read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from console.checkpoints.models import CONCERNS, QueryState
from console.health.findings import Level
from console.health.words import UNKNOWN, state_word
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
    """`shape` names a symbol of `SHAPES`."""

    shape: str
    word: str
    meaning: Meaning


#: SVG of each shape, 12 by 12. A list of jobs has a hundred, so they are no templates.
SHAPES: Mapping[str, str] = {
    "disc": '<circle cx="6" cy="6" r="5"/>',
    "half": '<circle class="hollow" cx="6" cy="6" r="4.6"/><path d="M6 1.4a4.6 4.6 0 0 0 0 9.2z"/>',
    "triangle": '<path d="M6 .8 11.6 11H.4z"/>',
    "square": '<path d="M1 1h10v10H1z"/>',
    "tick": '<path class="stroke" d="M1.5 6.5l3 3 6-7"/>',
    "pause": '<path d="M2 1.5h3v9H2zM7 1.5h3v9H7z"/>',
    "pin": '<path d="M3.5 1h5L8 5l2 2.2v.8H2v-.8L4 5z"/><path class="stroke" d="M6 8v3.4"/>',
    "cross": '<path class="stroke" d="M2 2l8 8M10 2l-8 8"/>',
    "ring": '<circle class="hollow" cx="6" cy="6" r="4.6"/>',
}

CONCERN_WORDS: Mapping[str, str] = {concern: label.lower() for concern, label in CONCERNS}
NEVER_RAN = ""  #: state of a job without runs
DISCARDED = "discarded"  #: a checkpoint whose files were removed
NOT_STARTED = "not_started"  #: a stage whose run ended before its first process

_RUN_SHAPES: Mapping[str, tuple[str, Meaning]] = {
    NEVER_RAN: ("ring", Meaning.NEUTRAL),
    RunState.QUEUED: ("half", Meaning.BUSY),
    RunState.STARTING: ("half", Meaning.BUSY),
    RunState.WAITING: ("triangle", Meaning.ATTENTION),
    RunState.RUNNING: ("disc", Meaning.OK),
    RunState.RESTARTING: ("triangle", Meaning.ATTENTION),
    RunState.STOPPING: ("half", Meaning.BUSY),
    RunState.DRAINING: ("half", Meaning.BUSY),
    RunState.CANCELLING: ("half", Meaning.BUSY),
    RunState.FINISHED: ("tick", Meaning.OK),
    RunState.STOPPED: ("pause", Meaning.NEUTRAL),
    RunState.CANCELED: ("cross", Meaning.NEUTRAL),
    RunState.FAILED: ("square", Meaning.FAILED),
}
STATUSES: Mapping[str, Mapping[str, Status]] = {
    "run": {state: Status(shape, state_word(state), meaning) for state, (shape, meaning) in _RUN_SHAPES.items()},
    "checkpoint": {
        DISCARDED: Status("ring", "Discarded", Meaning.NEUTRAL),
        "in_progress": Status("half", "In progress", Meaning.BUSY),
        "completed": Status("disc", "Completed", Meaning.OK),
        "failed": Status("square", "Failed", Meaning.FAILED),
        "aborted": Status("cross", "Aborted", Meaning.NEUTRAL),
        "superseded": Status("cross", "Superseded", Meaning.NEUTRAL),
    },
    "operation": {
        "queued": Status("half", "Queued", Meaning.BUSY),
        "running": Status("half", "In progress", Meaning.BUSY),
        "succeeded": Status("disc", "Succeeded", Meaning.OK),
        "failed": Status("square", "Failed", Meaning.FAILED),
        "unknown": Status("triangle", "Unknown", Meaning.ATTENTION),
    },
    "version": {
        "compiling": Status("half", "Compiling", Meaning.BUSY),
        "ready": Status("disc", "Ready", Meaning.OK),
        "rejected": Status("square", "Rejected", Meaning.FAILED),
    },
    "package": {
        "describing": Status("half", "Being described", Meaning.BUSY),
        "ready": Status("disc", "Ready", Meaning.OK),
        "rejected": Status("square", "Rejected", Meaning.FAILED),
        "deleting": Status("half", "Being deleted", Meaning.BUSY),
    },
    "review": {
        "unreviewed": Status("ring", "Not reviewed", Meaning.NEUTRAL),
        "in_review": Status("half", "In review", Meaning.BUSY),
        "reviewed": Status("disc", "Reviewed", Meaning.OK),
        "waived": Status("pause", "Waived", Meaning.NEUTRAL),
    },
    "attempt": {
        "": Status("half", "In progress", Meaning.BUSY),
        "running": Status("disc", "Running", Meaning.OK),
        "failed": Status("square", "Failed", Meaning.FAILED),
        "superseded": Status("cross", "Superseded", Meaning.NEUTRAL),
        "ended": Status("tick", "Ended", Meaning.OK),
        "released": Status("pause", "Released", Meaning.NEUTRAL),
        "lost": Status("triangle", "Lost", Meaning.ATTENTION),
    },
    "stage": {
        NOT_STARTED: Status("ring", "Not started", Meaning.NEUTRAL),
        StageState.WAITING: Status("triangle", "Waiting for a worker", Meaning.ATTENTION),
        StageState.STARTING: Status("half", "Starting", Meaning.BUSY),
        StageState.RUNNING: Status("disc", "Running", Meaning.OK),
        StageState.RESTARTING: Status("triangle", "Restarting", Meaning.ATTENTION),
        StageState.DONE: Status("tick", "Done", Meaning.OK),
        StageState.ENDED: Status("tick", "Ended", Meaning.NEUTRAL),
        StageState.FAILED: Status("square", "Failed", Meaning.FAILED),
    },
    "query": {
        QueryState.QUEUED: Status("half", "Waiting for a worker", Meaning.BUSY),
        QueryState.RUNNING: Status("half", "Reading", Meaning.BUSY),
        QueryState.SUCCEEDED: Status("disc", "Succeeded", Meaning.OK),
        QueryState.FAILED: Status("square", "Failed", Meaning.FAILED),
        QueryState.CANCELED: Status("cross", "Canceled", Meaning.NEUTRAL),
    },
    "guarantee": {
        Guarantee.EXACTLY_ONCE: Status("disc", "Exactly once", Meaning.OK),
        Guarantee.AT_LEAST_ONCE: Status("triangle", "At least once", Meaning.ATTENTION),
        Guarantee.NONE: Status("triangle", "No guarantee", Meaning.ATTENTION),
    },
}


def status(kind: str, state: str, health: str = "") -> Status:
    """The status of a `state`; a state unknown to this console is shown under its own name.

    `health`: of a run, as `console.health.findings.Verdict` has it. A run that is sick, or was not checked, never looks
    well.
    """
    plain = _status(kind, state)
    word, is_calm = state_word(state, health) if health else plain.word, plain.meaning in (Meaning.OK, Meaning.BUSY)
    if health == Level.FAILED.word and plain.meaning is not Meaning.FAILED:
        return Status("square", word, Meaning.FAILED)
    if health == Level.ATTENTION.word and is_calm:
        return Status("triangle", word, Meaning.ATTENTION)
    if health == UNKNOWN and is_calm:
        return Status("ring", word, Meaning.NEUTRAL)
    return plain


def _status(kind: str, state: str) -> Status:
    return STATUSES[kind].get(state) or Status("ring", state.replace("_", " ").capitalize(), Meaning.NEUTRAL)
