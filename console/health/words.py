"""The word for the state of a run and its health. Pages, REST and the command line show this word."""

from collections.abc import Mapping
from typing import Final

from runtime.core.job.lifecycle import TERMINAL_STATES, RunState

#: "": a job that never ran.
_STATES: Final[Mapping[str, str]] = {
    "": "Never started",
    RunState.QUEUED: "Waiting for a worker",
    RunState.STARTING: "Starting",
    RunState.WAITING: "Waiting for slots",
    RunState.RUNNING: "Running",
    RunState.RESTARTING: "Restarting",
    RunState.STOPPING: "Stopping with savepoint",
    RunState.DRAINING: "Draining",
    RunState.CANCELLING: "Cancelling",
    RunState.FINISHED: "Finished",
    RunState.STOPPED: "Stopped",
    RunState.CANCELED: "Canceled",
    RunState.FAILED: "Failed",
}
UNKNOWN: Final = "unknown"  #: health of a run that was well, or not checked, when the console's worker fell silent
HEALTH_WORDS: Final[Mapping[str, str]] = {"failed": "failing", "attention": "needs attention", "ok": "well"}
_CLAUSES: Final[Mapping[str, str]] = {**HEALTH_WORDS, "ok": "", UNKNOWN: "health not checked"}
#: States whose word alone shows that the run needs attention.
NOT_WELL: Final = frozenset({RunState.WAITING, RunState.RESTARTING})


def state_word(state: str, health: str = "") -> str:
    """`Running, needs attention`. `health`: the word of a level of `console.health.findings`, or `UNKNOWN`."""
    word = _STATES.get(state) or state.replace("_", " ").capitalize()
    is_enough = state in ("", *TERMINAL_STATES) or (state in NOT_WELL and health != "failed")
    clause = "" if is_enough else _CLAUSES.get(health, "")
    return f"{word}, {clause}" if clause else word
