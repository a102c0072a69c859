"""The states of a run and the one transition table; four readers: the job master, the tests, the docs, the buttons.

It does not know how a state is stored or shown. Observed state only: what a person *wants* is an operation, and what
can be reached is a matter of leases.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class RunState(StrEnum):
    """Where a run stands, as last recorded."""

    QUEUED = "queued"  #: may be claimed by a worker
    STARTING = "starting"  #: claimed; slots and subtasks are being deployed
    WAITING = "waiting"  #: fewer slots are available than the run needs; it starts by itself
    RUNNING = "running"  #: every subtask runs (or has finished)
    RESTARTING = "restarting"  #: an attempt failed, the next one is on its way
    STOPPING = "stopping"  #: stop with savepoint under way
    DRAINING = "draining"  #: drain under way
    CANCELLING = "cancelling"  #: slots are being told to end at once
    FINISHED = "finished"  #: all data processed and committed (end of inputs, or drain)
    STOPPED = "stopped"  #: ended with a savepoint, to be continued
    CANCELED = "canceled"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL


class RunEvent(StrEnum):
    """What can happen to a run."""

    CLAIMED = "claimed"
    SLOTS_MISSING = "slots missing"
    SLOTS_AVAILABLE = "slots available"  #: after SLOTS_MISSING
    DEPLOYED = "deployed"
    ATTEMPT_FAILED = "attempt failed"  #: and the restart strategy allows another
    GAVE_UP = "gave up"  #: and the restart strategy does not
    RELEASED = "released"  #: worker shut down or lost: another may claim the run
    STOP_REQUESTED = "stop requested"
    DRAIN_REQUESTED = "drain requested"
    CANCEL_REQUESTED = "cancel requested"
    SHUTDOWN_ABANDONED = "shutdown abandoned"  #: the savepoint of a stop or drain failed: the job goes on
    ENDED = "ended"  #: every subtask has ended


TERMINAL = frozenset({RunState.FINISHED, RunState.STOPPED, RunState.CANCELED, RunState.FAILED})

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


def after(state: RunState, event: RunEvent) -> RunState | None:
    """The state that follows, or None where `event` is not legal in `state`."""
    return TRANSITIONS.get((state, event))


class RunAct(StrEnum):
    """What a person or program can ask of a run that exists. Starting and restoring make a new run."""

    SAVEPOINT = "savepoint"
    STOP = "stop"
    DRAIN = "drain"
    CANCEL = "cancel"


_REQUEST = {
    RunAct.STOP: RunEvent.STOP_REQUESTED,
    RunAct.DRAIN: RunEvent.DRAIN_REQUESTED,
    RunAct.CANCEL: RunEvent.CANCEL_REQUESTED,
}


def refusal(state: RunState, act: RunAct, *, batch: bool = False) -> str | None:
    """Why `act` may not be asked of a run in `state`, in words for a person; None when it may.

    Args:
        batch: the run is one in BATCH.
    """
    if state.is_terminal:
        return f"The run has ended ({state})."
    if batch and act is not RunAct.CANCEL:
        return "A run in BATCH takes no checkpoints: cancel it, or wait for its end."
    event = _REQUEST.get(act)
    legal = state is RunState.RUNNING if event is None else after(state, event) is not None
    if legal:
        return None
    if act is RunAct.CANCEL:
        return "The run is being cancelled already."
    return f"The run is {state}; this needs a running one."


def may_start(state: RunState | None) -> bool:
    """Whether a job whose latest run is in `state` (None: it never ran) may be started or restored."""
    return state is None or state.is_terminal
