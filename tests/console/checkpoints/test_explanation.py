"""The sentence on top of a checkpoint's page."""

from typing import Any

import pytest

from console.checkpoints.explanation import Circumstances, Load, explain
from console.checkpoints.lanes import Lane

GRAPH = {
    "edges": [
        {"source": "source", "target": "window", "feedback": False},
        {"source": "window", "target": "sink", "feedback": False},
        {"source": "sink", "target": "source", "feedback": True},
    ]
}
BUSY: Load = {"source": (0.05, 0.95), "window": (1.0, 0.0), "sink": (0.1, 0.0)}
IDLE: Load = {"source": (0.1, 0.0), "window": (0.2, 0.1), "sink": (0.1, 0.0)}


def lane(name: str, *phases_ms: float, late_ms: int = 0) -> Lane:
    """Phases: start delay, alignment, pre-barrier, sync, async. Without phases the acknowledgement is missing."""
    uid, _, index = name.partition("/")
    at_ms = round(sum(phases_ms)) + late_ms if phases_ms else None
    return Lane(
        operator=uid, index=int(index), at_ms=at_ms, phases_ms=phases_ms or (0.0,) * 5,
        written_bytes=1_258_291, state_bytes=0,
    )  # fmt: skip


QUICK = (lane("source/0", 5, 0, 0, 1, 4), lane("window/0", 9, 0, 0, 1, 4), lane("window/1", 9, 0, 0, 1, 4))


def sentence(*lanes: Lane, load: Load = BUSY, **changes: Any) -> str:
    fields: dict[str, Any] = {
        "outcome": "completed", "reason": "", "detail": "",
        "took_ms": max((lane.at_ms or 0 for lane in lanes), default=0) + 20, "graph": GRAPH,
    }  # fmt: skip
    return explain(Circumstances(**{**fields, **changes}, lanes=lanes, load=load))


@pytest.mark.parametrize(
    ("lanes", "load", "expected"),
    [
        (
            (*QUICK, lane("window/3", 40_000, 0, 0, 100, 900)),
            BUSY,
            (
                "Subtask 3 of `window` acknowledged last, 41 s after the trigger: its barrier arrived after 40 s, "
                "since `window` was 100 % busy."
            ),
        ),
        (
            (*QUICK, lane("window/3", 40_000, 0, 0, 100, 900)),
            IDLE,
            "Subtask 3 of `window` acknowledged last, 41 s after the trigger: its barrier arrived after 40 s.",
        ),
        (  # the sink waited for the barrier of the window
            (*QUICK[:2], lane("window/3", 40_000, 0, 0, 100, 200), lane("sink/0", 40_100, 0, 0, 300, 900)),
            BUSY,
            (
                "Subtask 0 of `sink` acknowledged last, 41 s after the trigger: its barrier left subtask 3 of `window` "
                "only 40 s after the trigger, since `window` was 100 % busy."
            ),
        ),
        (  # the source could not send its barrier: its output had no credit
            (lane("source/0", 30_000, 0, 0, 1, 4), lane("window/0", 30_100, 0, 0, 1, 9)),
            BUSY,
            (
                "Subtask 0 of `window` acknowledged last, 30 s after the trigger: its barrier left subtask 0 of "
                "`source` "
                "only 30 s after the trigger, since `source` was 95 % backpressured by `window`, which was 100 % busy."
            ),
        ),
        (
            (*QUICK, lane("window/3", 2_000, 38_000, 0, 100, 900)),
            BUSY,
            (
                "Subtask 3 of `window` acknowledged last, 41 s after the trigger: its first barrier arrived after "
                "2.0 s, "
                "and the barrier of its last input 38 s later, since `window` was 100 % busy."
            ),
        ),
        (
            (*QUICK, lane("window/3", 2, 0, 0, 100, 9_000)),
            BUSY,
            (
                "Subtask 3 of `window` acknowledged last, 9.1 s after the trigger: writing 1.2 MiB to the checkpoint "
                "storage took 9.0 s."
            ),
        ),
        (
            (*QUICK, lane("window/3", 2, 0, 0, 9_000, 100)),
            BUSY,
            (
                "Subtask 3 of `window` acknowledged last, 9.1 s after the trigger: copying its state took 9.0 s, "
                "during "
                "which it processed no records."
            ),
        ),
        (
            (*QUICK, lane("window/3", 2, 0, 9_000, 3, 100)),
            BUSY,
            (
                "Subtask 3 of `window` acknowledged last, 9.1 s after the trigger: emitting its buffered rows before "
                "the "
                "barrier took 9.0 s."
            ),
        ),
        (
            (*QUICK, lane("window/3", 2, 0, 0, 3, 100, late_ms=9_000)),
            BUSY,
            (
                "Subtask 3 of `window` acknowledged last, 9.1 s after the trigger: its acknowledgement reached the job "
                "master 9.0 s after its snapshot was stored."
            ),
        ),
        (
            (lane("source/0", 9_000, 0, 0, 1, 4),),
            IDLE,
            "Subtask 0 of `source` acknowledged last, 9.0 s after the trigger: its trigger waited 9.0 s.",
        ),
    ],
)
def test_a_completed_checkpoint_names_its_slowest_phase_and_the_cause(
    lanes: tuple[Lane, ...], load: Load, expected: str
) -> None:
    assert sentence(*lanes, load=load) == expected


def test_a_slow_record_is_told_apart_from_slow_subtasks() -> None:
    assert sentence(*QUICK, took_ms=12_014) == (
        "All 3 subtasks had acknowledged 14 ms after the trigger. To store and record the manifest then took 12 s."
    )


def test_a_checkpoint_under_way_names_the_first_operator_that_it_waits_for() -> None:
    lanes = (*QUICK, lane("window/2"), lane("window/3"), lane("sink/0"), lane("sink/1"))
    assert sentence(*lanes, outcome="in_progress", took_ms=14_000) == (
        "3 of 7 subtasks have acknowledged, 14 s after the trigger. Subtasks 2 and 3 of `window`, and 2 subtasks "
        "behind them, are awaited, since `window` is 100 % busy."
    )
    assert sentence(*QUICK, outcome="in_progress", took_ms=14_000) == (
        "All 3 subtasks have acknowledged. The manifest is being stored."
    )


def test_an_expired_checkpoint_names_missing_and_last_acknowledgements() -> None:
    lanes = (*QUICK[:2], *(lane(f"window/{index}") for index in range(1, 6)), lane("sink/0"))
    assert sentence(*lanes, outcome="failed", reason="expired", took_ms=60_000) == (
        "Subtasks 1, 2, 3 and 2 more of `window`, and 1 subtask behind them, had not acknowledged when the checkpoint "
        "expired after 1 min, since `window` was 100 % busy. 2 of 8 subtasks acknowledged, subtask 0 of `window` last, "
        "after 14 ms."
    )


def test_a_failed_checkpoint_repeats_its_reason() -> None:
    detail: dict[str, Any] = {
        "outcome": "failed",
        "reason": "async_failed",
        "detail": "window/1: disk full",
        "took_ms": 3_000,
    }
    assert sentence(*QUICK, lane("sink/0"), **detail) == (
        "Failed 3.0 s after its trigger: window/1: disk full. 3 of 4 subtasks had acknowledged."
    )


def test_an_aborted_or_superseded_checkpoint_is_no_failure() -> None:
    lanes = (*QUICK, lane("sink/0"))
    aborted: dict[str, Any] = {
        "outcome": "aborted",
        "reason": "suspended",
        "detail": "a stop or drain begins",
        "took_ms": 2_000,
    }
    assert sentence(*lanes, **aborted) == (
        "Aborted 2.0 s after its trigger: a stop or drain begins. 3 of 4 subtasks had acknowledged. "
        "No subtask failed it."
    )
    superseded: dict[str, Any] = {
        "outcome": "superseded",
        "reason": "subsumed",
        "detail": "checkpoint 8 completed first",
    }
    assert sentence(*lanes, took_ms=900, **superseded) == (
        "Not needed any more 0.90 s after its trigger: checkpoint 8 completed first. 3 of 4 subtasks had acknowledged."
    )


def test_a_row_without_acknowledgements_has_no_sentence() -> None:
    assert sentence(took_ms=5) == ""


def test_operators_have_the_names_of_the_graph_without_their_backticks() -> None:
    """Operators of the same name have their uid too."""
    names = {"window": "window `1 day`", "source": "orders", "sink": "orders"}
    graph = {**GRAPH, "operators": [{"uid": uid, "name": name} for uid, name in names.items()]}
    late = (*QUICK, lane("window/3", 40_000, 0, 0, 100, 900))
    assert sentence(*late, graph=graph) == (
        "Subtask 3 of `window '1 day'` acknowledged last, 41 s after the trigger: its barrier arrived after 40 s, "
        "since `window '1 day'` was 100 % busy."
    )
    awaited = sentence(lane("source/0"), load=IDLE, outcome="in_progress", graph=graph)
    assert "Subtask 0 of `orders (source)` is awaited." in awaited
