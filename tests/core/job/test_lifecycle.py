"""The transition table, over the full product of states and events."""

import itertools

import pytest

from runtime.core.job.lifecycle import (
    TERMINAL_STATES,
    TRANSITIONS,
    RunAct,
    RunEvent,
    RunState,
    may_start,
    next_state,
    refusal,
)

S, E = RunState, RunEvent
PRODUCT = list(itertools.product(RunState, RunEvent))


@pytest.mark.parametrize(("state", "event"), PRODUCT)
def test_every_pair_has_one_answer(state: RunState, event: RunEvent) -> None:
    assert next_state(state, event) == TRANSITIONS.get((state, event))


@pytest.mark.parametrize(("state", "event"), [pair for pair in PRODUCT if pair[0] in TERMINAL_STATES])
def test_nothing_happens_to_a_run_that_has_ended(state: RunState, event: RunEvent) -> None:
    assert next_state(state, event) is None


def test_every_state_can_be_reached_and_every_live_one_can_end() -> None:
    reached = set(TRANSITIONS.values()) | {S.QUEUED}
    assert reached == set(RunState)
    for state in set(RunState) - TERMINAL_STATES:
        assert _terminal_within_reach(state)


def _terminal_within_reach(start: RunState) -> bool:
    states, waiting = {start}, [start]
    while waiting:
        state = waiting.pop()
        following = {target for (origin, _), target in TRANSITIONS.items() if origin is state}
        waiting += following - states
        states |= following
    return bool(states & TERMINAL_STATES)


@pytest.mark.parametrize(
    ("state", "event", "expected"),
    [
        (S.QUEUED, E.CLAIMED, S.STARTING),
        (S.STARTING, E.DEPLOYED, S.RUNNING),
        (S.RUNNING, E.ENDED, S.FINISHED),
        (S.STOPPING, E.ENDED, S.STOPPED),
        (S.DRAINING, E.ENDED, S.FINISHED),
        (S.STOPPING, E.SHUTDOWN_ABANDONED, S.RUNNING),
        (S.RUNNING, E.ATTEMPT_FAILED, S.RESTARTING),
        (S.RUNNING, E.RELEASED, S.QUEUED),
        (S.CANCELLING, E.RELEASED, S.CANCELED),
        (S.STARTING, E.SLOTS_MISSING, S.WAITING),
        (S.RESTARTING, E.SLOTS_MISSING, S.WAITING),
        (S.WAITING, E.SLOTS_AVAILABLE, S.STARTING),
        (S.WAITING, E.CANCEL_REQUESTED, S.CANCELLING),
        (S.QUEUED, E.ENDED, None),
        (S.STARTING, E.STOP_REQUESTED, None),
    ],
)
def test_named_transitions(state: RunState, event: RunEvent, expected: RunState | None) -> None:
    """S0-26, S0-28, S0-70: both ends of a job, and the way back when a savepoint fails."""
    assert next_state(state, event) is expected


@pytest.mark.parametrize(
    ("state", "act", "why"),
    [
        (S.RUNNING, RunAct.SAVEPOINT, None),
        (S.RUNNING, RunAct.STOP, None),
        (S.RUNNING, RunAct.DRAIN, None),
        (S.RESTARTING, RunAct.CANCEL, None),
        (S.RESTARTING, RunAct.SAVEPOINT, "The run is restarting; it must be running for this."),
        (S.STOPPING, RunAct.DRAIN, "The run is stopping; it must be running for this."),
        (S.CANCELLING, RunAct.CANCEL, "The run is already being cancelled."),
        (S.FINISHED, RunAct.CANCEL, "The run has ended (finished)."),
    ],
)
def test_what_people_may_ask(state: RunState, act: RunAct, why: str | None) -> None:
    assert refusal(state, act) == why


@pytest.mark.parametrize("act", [RunAct.SAVEPOINT, RunAct.STOP, RunAct.DRAIN])
def test_a_run_in_batch_takes_no_checkpoints_and_may_be_cancelled(act: RunAct) -> None:
    why = "A run in BATCH takes no checkpoints: cancel it, or wait for its end."
    assert refusal(S.RUNNING, act, batch=True) == why
    assert refusal(S.RUNNING, RunAct.CANCEL, batch=True) is None
    assert refusal(S.FINISHED, act, batch=True) == "The run has ended (finished)."


def test_a_job_may_start_when_no_run_is_under_way() -> None:
    assert may_start(None)
    assert may_start(S.STOPPED)
    assert not may_start(S.QUEUED)
