"""Starts, stops, drains and cancels that take far longer than those before: the rule at its border."""

from typing import Any

import pytest
from msgspec import structs

from console.health.facts import StateChange
from console.metrics.live import CheckpointLive, Live, OperatorLive, SlotLive, parse
from runtime.core.job.lifecycle import RunState
from tests.console.health.facts_of import ago, found, sentence

STARTING = {"state": RunState.STARTING}
DEPLOYING = Live(at=ago(1), deploying_ms=599_000, parallelism=1, slots=(SlotLive(index=0),))


def change(seconds: float, longest_s: float | None = None) -> Any:
    return StateChange(ago(seconds), longest_s and longest_s * 1000)


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.STOPPING, RunState.DRAINING, RunState.CANCELLING])
@pytest.mark.parametrize(
    ("seconds", "longest_s", "is_found"),
    [(300, None, True), (299, None, False), (300, 100, True), (1_199, 400, False), (1_200, 400, True)],
)
def test_a_change_is_slow_after_five_minutes_and_three_times_the_longest(
    state: RunState, seconds: float, longest_s: float | None, is_found: bool
) -> None:
    fields = {"state": state, "live": Live(at=ago(2_000)), "change": change(seconds, longest_s)}
    assert (found("slow-change", **fields) is not None) is is_found


def test_a_start_names_the_operators_that_open_or_restore() -> None:
    operators = {"join": OperatorLive(state="deploying"), "sink": OperatorLive()}
    live = replace_live(operators=operators)
    assert sentence("slow-change", **STARTING, live=live, change=change(900, 40)) == (
        "The start of the run has taken 10 min, the longest before 40 s. "
        "These operators have not opened and restored their state: `join`."
    )
    missing = replace_live(operators=operators, parallelism=4)
    assert sentence("slow-change", **STARTING, live=missing, change=change(900)) == (
        "The start of the run has taken 10 min. 1 of 4 slots have connected."
    )
    slots = tuple(SlotLive(index=index, host=f"h{index}") for index in range(4))
    hanging = replace_live(operators={"sink": OperatorLive()}, parallelism=4, slots=slots, undeployed_slots=(1, 3))
    text = sentence("slow-change", **STARTING, live=hanging, change=change(900))
    assert text.endswith(". These slots have not deployed their subtasks: 1 on h1 and 3 on h3.")
    older = structs.replace(hanging, undeployed_slots=())  # the report of an older job master
    text = sentence("slow-change", **STARTING, live=older, change=change(900))
    assert text.endswith("Not all slots have deployed their subtasks.")
    before = sentence("slow-change", **STARTING, live=Live(at=ago(2_000)), change=change(900))
    assert before.endswith("has not begun to deploy the subtasks: it reads the snapshot or lists its inputs.")


def test_a_wait_for_slots_is_no_part_of_the_start() -> None:
    """`runtime.master.slot_wait` reports the end of a wait without numbers."""
    available = parse({"restarts": 0}, ago(20))
    assert found("slow-change", **STARTING, live=available, change=change(9_000)) is None
    hanging = parse({"restarts": 0}, ago(320))
    assert sentence("slow-change", **STARTING, live=hanging, change=change(9_000)) == (
        "The start of the run has taken 5 min 20 s. "
        "Enough slots are available, but their processes have not all started."
    )
    deployed = replace_live(deploying_ms=20_000)
    assert found("slow-change", **STARTING, live=deployed, change=change(9_000)) is None


def test_a_stop_names_the_state_of_its_savepoint() -> None:
    pending = CheckpointLive(number=8, kind="stop", acknowledged=3, subtasks=10)
    fields = {"state": RunState.STOPPING, "change": change(600)}
    assert sentence("slow-change", **fields, live=Live(at=ago(1), checkpoint=pending)) == (
        "The stop of the run has taken 10 min. Its savepoint waits: 3 of 10 subtasks have acknowledged."
    )
    assert sentence("slow-change", **fields).endswith(
        "No savepoint is in progress: it has not begun, or it has completed and a slot has not ended."
    )
    cancelling = sentence("slow-change", state=RunState.CANCELLING, change=change(600))
    assert cancelling == "The cancel of the run has taken 10 min. It waits until its slots have ended."


def replace_live(**changes: Any) -> Live:
    return structs.replace(DEPLOYING, **changes)
