"""The states of a run and their transition table, shared by the job master, the console, the API and the tests.

A state is an observation. A user's request is an operation. The lease of a run determines its owner.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from types import MappingProxyType


class RunState(StrEnum):
    """The state of a run, as last recorded."""

    QUEUED = "queued"  #: may be claimed by a Celery worker
    STARTING = "starting"  #: claimed; slots and subtasks are being deployed
    WAITING = "waiting"  #: fewer slots are available than the run needs; it starts once there are enough
    RUNNING = "running"  #: every subtask runs (or has finished)
    RESTARTING = "restarting"  #: an attempt failed, the next attempt is being started
    STOPPING = "stopping"  #: stop with savepoint under way
    DRAINING = "draining"  #: drain under way
    CANCELLING = "cancelling"  #: slots are being stopped without a savepoint
    FINISHED = "finished"  #: all data processed and committed (end of inputs, or drain)
    STOPPED = "stopped"  #: ended with a savepoint, to be continued
    CANCELED = "canceled"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL_STATES


class RunEvent(StrEnum):
    """The events that change the state of a run."""

    CLAIMED = "claimed"
    SLOTS_MISSING = "slots missing"
    SLOTS_AVAILABLE = "slots available"  #: after SLOTS_MISSING
    DEPLOYED = "deployed"
    ATTEMPT_FAILED = "attempt failed"  #: the restart strategy allows another attempt
    GAVE_UP = "gave up"  #: an attempt failed, and the restart strategy allows no other
    RELEASED = "released"  #: the Celery worker was shut down or lost: another may claim the run
    STOP_REQUESTED = "stop requested"
    DRAIN_REQUESTED = "drain requested"
    CANCEL_REQUESTED = "cancel requested"
    SHUTDOWN_ABANDONED = "shutdown abandoned"  #: the savepoint of a stop or drain failed: the job continues
    ENDED = "ended"  #: every subtask has ended


TERMINAL_STATES = frozenset({RunState.FINISHED, RunState.STOPPED, RunState.CANCELED, RunState.FAILED})
#: States in which records flow.
FLOWING_STATES = frozenset({RunState.RUNNING, RunState.STOPPING, RunState.DRAINING})

_S, _E = RunState, RunEvent
_LIVE = (_S.STARTING, _S.WAITING, _S.RUNNING, _S.RESTARTING, _S.STOPPING, _S.DRAINING)

TRANSITIONS: Mapping[tuple[RunState, RunEvent], RunState] = MappingProxyType(
    {
        (_S.QUEUED, _E.CLAIMED): _S.STARTING,
        (_S.QUEUED, _E.CANCEL_REQUESTED): _S.CANCELED,
        (_S.STARTING, _E.SLOTS_MISSING): _S.WAITING,
        (_S.RESTARTING, _E.SLOTS_MISSING): _S.WAITING,
        (_S.WAITING, _E.SLOTS_AVAILABLE): _S.STARTING,
        (_S.STARTING, _E.DEPLOYED): _S.RUNNING,
        (_S.RESTARTING, _E.DEPLOYED): _S.RUNNING,
        (_S.RUNNING, _E.STOP_REQUESTED): _S.STOPPING,
        (_S.RUNNING, _E.DRAIN_REQUESTED): _S.DRAINING,
        (_S.RUNNING, _E.ENDED): _S.FINISHED,
        (_S.STOPPING, _E.ENDED): _S.STOPPED,
        (_S.DRAINING, _E.ENDED): _S.FINISHED,
        (_S.STOPPING, _E.SHUTDOWN_ABANDONED): _S.RUNNING,
        (_S.DRAINING, _E.SHUTDOWN_ABANDONED): _S.RUNNING,
        (_S.CANCELLING, _E.ENDED): _S.CANCELED,
        (_S.CANCELLING, _E.ATTEMPT_FAILED): _S.CANCELED,
        (_S.CANCELLING, _E.GAVE_UP): _S.CANCELED,
        (_S.CANCELLING, _E.RELEASED): _S.CANCELED,
        **{(state, _E.ATTEMPT_FAILED): _S.RESTARTING for state in _LIVE},
        **{(state, _E.GAVE_UP): _S.FAILED for state in _LIVE},
        **{(state, _E.RELEASED): _S.QUEUED for state in _LIVE},
        **{(state, _E.CANCEL_REQUESTED): _S.CANCELLING for state in _LIVE},
    }
)


def next_state(state: RunState, event: RunEvent) -> RunState | None:
    """The state that follows, or None where `event` is not legal in `state`."""
    return TRANSITIONS.get((state, event))


class RunAct(StrEnum):
    """The operations on an existing run. Starting and restoring create a new run."""

    SAVEPOINT = "savepoint"
    STOP = "stop"
    DRAIN = "drain"
    CANCEL = "cancel"


_REQUEST_EVENTS = {
    RunAct.STOP: RunEvent.STOP_REQUESTED,
    RunAct.DRAIN: RunEvent.DRAIN_REQUESTED,
    RunAct.CANCEL: RunEvent.CANCEL_REQUESTED,
}


def refusal(state: RunState, act: RunAct, *, batch: bool = False) -> str | None:
    """Why `act` is not allowed in `state`, as a sentence for people; None if it is allowed. `batch`: a BATCH run."""
    if state.is_terminal:
        return f"The run has ended ({state})."
    if batch and act is not RunAct.CANCEL:
        return "A run in BATCH takes no checkpoints: cancel it, or wait for its end."
    event = _REQUEST_EVENTS.get(act)
    legal = state is RunState.RUNNING if event is None else next_state(state, event) is not None
    if legal:
        return None
    if act is RunAct.CANCEL:
        return "The run is already being cancelled."
    return f"The run is {state}; it must be running for this."


def may_start(state: RunState | None) -> bool:
    """Whether a job whose latest run is in `state` (None: it never ran) may be started or restored."""
    return state is None or state.is_terminal


class MasterExitCode(IntEnum):
    """Exit codes of a job master, read by its supervisor. With any other code the master has died."""

    DONE = 0  #: a terminal state is recorded
    SUPERSEDED = 4  #: a newer attempt exists: this process exits
    RELEASED = 5  #: the run may be claimed again
    BROKEN = 6  #: this process can start no more slots: a fresh process must take over
