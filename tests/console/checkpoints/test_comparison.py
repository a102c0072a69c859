"""Two checkpoints compared: the operator behind the difference, and the operators that are about equal."""

from typing import Any

import pytest

from console.checkpoints.comparison import Comparison, Side, compare
from console.checkpoints.models import Checkpoint
from tests.console.ui.rows import GRAPH, OPERATORS

UIDS = [operator["uid"] for operator in GRAPH["operators"]]
#: The time between the barriers of neighbours in the base checkpoint.
HOP_MS = 5.0


def checkpoint(number: int, took_ms: int, delays: dict[tuple[str, str], float], **changes: Any) -> Checkpoint:
    """A checkpoint whose barrier takes `HOP_MS` from operator to operator, with more `delays` by operator and phase."""
    acknowledgements, at = {}, 0.0
    for uid in (uid for uid in UIDS if uid != "airlines"):
        at += HOP_MS + delays.get((uid, "start_delay"), 0.0)
        phases = {phase: delays.get((uid, phase), 1.0) for phase in ("alignment", "pre_barrier", "sync", "async")}
        ends = round(at + sum(phases.values()))
        acknowledgements[uid] = {
            "index": [0, 1], "at_ms": [ends, ends], "start_delay_ms": [at, at], "written_bytes": [8, 8],
            "state_bytes": [9, 9], **{f"{phase}_ms": [ms, ms] for phase, ms in phases.items()},
        }  # fmt: skip
        at += phases["alignment"] + phases["pre_barrier"]
    fields = {"kind": "checkpoint", "status": "completed", "duration_ms": took_ms, "size_bytes": 1_258_942,
             "written_bytes": 86_311, "operators": OPERATORS, "acknowledgements": acknowledgements}  # fmt: skip
    return Checkpoint(number=number, **{**fields, **changes})


def compared(base: Checkpoint, other: Checkpoint, **rows: Any) -> Comparison:
    sides = [Side(row, row.duration_ms or 0, rows.get("rows"), rows.get("in_flight", {})) for row in (base, other)]
    return compare(sides[0], sides[1], GRAPH)


@pytest.mark.parametrize(
    ("uid", "phase", "words"),
    [
        ("flights", "start_delay", "the wait of `flights` for its trigger"),
        ("join", "start_delay", "the wait for barriers in the input of `join airlines`"),
        ("join", "alignment", "the wait for barriers in the input of `join airlines`"),
        ("prepared", "pre_barrier", "the work of `prepared` before its barrier"),
        ("window", "async", "the write of the state of `sessions`"),
        ("window", "sync", "the copy of the state of `sessions`"),
    ],
)
def test_the_operator_that_grew_is_named_and_not_those_that_wait_behind_it(uid: str, phase: str, words: str) -> None:
    """Every operator downstream has a longer start delay too."""
    base, other = checkpoint(212, 300, {}), checkpoint(213, 2_300, {(uid, phase): 1_800.0})
    comparison = compared(base, other)
    assert comparison.explained_by == uid
    assert comparison.sentence.startswith(
        f"Checkpoint 213 took 2.0 s longer than checkpoint 212: {words} grew by 1.8 s, 90 %"
    )
    back = compared(other, base)
    assert back.sentence.startswith(f"Checkpoint 212 took 2.0 s less than checkpoint 213: {words} shrank by 1.8 s")


def test_the_time_after_the_last_acknowledgement_belongs_to_no_operator() -> None:
    comparison = compared(checkpoint(1, 60, {}), checkpoint(2, 5_060, {}))
    assert ": the time to store and record the manifest grew by 5.0 s, 100 % of the difference." in comparison.sentence
    assert comparison.explained_by == ""


def test_a_difference_that_no_operator_explains_names_none() -> None:
    spread = {(uid, "sync"): 20.0 for uid in UIDS}
    comparison = compared(checkpoint(1, 60, {}, acknowledgements={}), checkpoint(2, 260, spread, acknowledgements={}))
    assert "took 0.20 s longer than checkpoint 1. No single operator explains the difference." in comparison.sentence


def test_larger_state_names_its_operator_and_the_rest_is_folded() -> None:
    larger = [{**row, "state_bytes": 5_254_112} if row["uid"] == "window" else row for row in OPERATORS]
    other = checkpoint(2, 312, {}, operators=larger, size_bytes=5_258_942)
    comparison = compared(checkpoint(1, 300, {}), other, rows={"window": 40}, in_flight={"join": 77})
    assert comparison.sentence == (
        "Checkpoint 2 took about as long as checkpoint 1, 0.31 s. The state is 3.8 MiB larger, 100 % of it in "
        "`sessions`."
    )
    assert comparison.explained_by == "window"
    assert [each.uid for each in comparison.notable] == ["window"]
    assert [each.uid for each in comparison.equal] == [uid for uid in UIDS if uid != "window"]
    changes = {each.uid: each.changes for each in comparison.operators}
    assert (changes["window"]["rows"].other, changes["join"]["rows"].other) == (40, 0)
    assert (changes["join"]["in_flight_bytes"].difference, changes["window"]["in_flight_bytes"].other) == (0, None)


def test_a_failed_checkpoint_is_compared_by_the_acknowledgements_that_came() -> None:
    failed = checkpoint(2, 9_000, {("flights", "sync"): 7_000.0}, status="failed", operators=[], size_bytes=None)
    for numbers in failed.acknowledgements["window"].values():
        numbers[:] = [None, None] if numbers != [0, 1] else numbers
    comparison = compared(checkpoint(1, 300, {}), failed)
    assert comparison.sentence.startswith(
        "Checkpoint 2 failed: only the subtasks that have acknowledged are compared. Checkpoint 2 took 8.7 s longer"
    )
    assert "the copy of the state of `flights` grew by 7.0 s" in comparison.sentence
    window = next(each for each in comparison.operators if each.uid == "window")
    assert window.changes["sync_ms"].other is None
