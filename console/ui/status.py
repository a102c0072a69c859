"""States as a shape, a word and a meaning, so that a page never relies on colour alone.

This module alone maps states to meanings; templates and drawings read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from console.checkpoints.models import CONCERNS, QueryState
from console.health.findings import Level
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

#: Words for the health of a job, by level.
HEALTH_WORDS: Mapping[str, str] = {
    Level.FAILED.word: "failing",
    Level.ATTENTION.word: "needs attention",
    Level.OK.word: "well",
}
CONCERN_WORDS: Mapping[str, str] = {concern: label.lower() for concern, label in CONCERNS}
UNKNOWN_HEALTH = "unknown"  #: of a run that was well, or not checked, when the console's worker fell silent
NEVER_RAN = ""  #: state of a job without runs
DISCARDED = "discarded"  #: a checkpoint whose files were removed
NOT_STARTED = "not_started"  #: a stage whose run ended before its first process

STATUSES: Mapping[str, Mapping[str, Status]] = {
    "run": {
        NEVER_RAN: Status("ring", "Never started", Meaning.NEUTRAL),
        RunState.QUEUED: Status("half", "Waiting for a worker", Meaning.BUSY),
        RunState.STARTING: Status("half", "Starting", Meaning.BUSY),
        RunState.WAITING: Status("triangle", "Waiting for slots", Meaning.ATTENTION),
        RunState.RUNNING: Status("disc", "Running", Meaning.OK),
        RunState.RESTARTING: Status("triangle", "Restarting", Meaning.ATTENTION),
        RunState.STOPPING: Status("half", "Stopping with savepoint", Meaning.BUSY),
        RunState.DRAINING: Status("half", "Draining", Meaning.BUSY),
        RunState.CANCELLING: Status("half", "Cancelling", Meaning.BUSY),
        RunState.FINISHED: Status("tick", "Finished", Meaning.OK),
        RunState.STOPPED: Status("pause", "Stopped", Meaning.NEUTRAL),
        RunState.CANCELED: Status("cross", "Canceled", Meaning.NEUTRAL),
        RunState.FAILED: Status("square", "Failed", Meaning.FAILED),
    },
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

    `health` is the level of a run's health (`console.health.findings.Level.word`, or `UNKNOWN_HEALTH`): a run that is
    sick, or was not checked, never looks well.
    """
    plain = _status(kind, state)
    if health == Level.FAILED.word and plain.meaning is not Meaning.FAILED:
        return Status("square", f"{plain.word}, {HEALTH_WORDS[health]}", Meaning.FAILED)
    if health == Level.ATTENTION.word and plain.meaning in (Meaning.OK, Meaning.BUSY):
        return Status("triangle", f"{plain.word}, {HEALTH_WORDS[health]}", Meaning.ATTENTION)
    if health == UNKNOWN_HEALTH and plain.meaning in (Meaning.OK, Meaning.BUSY):
        return Status("ring", f"{plain.word}, health not checked", Meaning.NEUTRAL)
    return plain


def _status(kind: str, state: str) -> Status:
    return STATUSES[kind].get(state) or Status("ring", state.replace("_", " ").capitalize(), Meaning.NEUTRAL)
