"""The words for subtasks that have not acknowledged a checkpoint."""

import pytest

from runtime.core.checkpoint.missing_subtasks import missing_subtasks

DOWNSTREAM = {"a": ("join",), "b": ("join",), "join": ("window",), "window": ("out",)}
SPREAD = {"a": ("b", "c", "d", "e", "f")}


def subtasks(**numbers: int) -> list[tuple[str, int]]:
    return [(uid, index) for uid, number in numbers.items() for index in range(number)]


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (subtasks(out=1), "subtask 0 of `out`"),
        (subtasks(join=2, window=2, out=2), "subtasks 0 and 1 of `join`, and 4 subtasks behind them"),
        (subtasks(window=1, out=1), "subtask 0 of `window`, and 1 subtask behind it"),
        (subtasks(window=4), "subtasks 0, 1, 2 and 3 of `window`"),
        (subtasks(window=5), "subtasks 0, 1, 2 and 2 more of `window`"),
        (subtasks(a=1, b=2, join=1), "subtask 0 of `a` and subtasks 0 and 1 of `b`, and 1 subtask behind them"),
    ],
)
def test_the_first_late_operators_are_named_and_the_others_counted(
    missing: list[tuple[str, int]], expected: str
) -> None:
    assert str(missing_subtasks(missing, DOWNSTREAM, "`{}`".format)) == expected


def test_many_late_operators_are_counted_but_never_a_single_one() -> None:
    four = missing_subtasks(subtasks(b=1, c=1, d=1, e=1), SPREAD, str)
    assert str(four) == "subtask 0 of b, subtask 0 of c, subtask 0 of d and subtask 0 of e"
    five = missing_subtasks(subtasks(b=1, c=1, d=1, e=1, f=2), SPREAD, str)
    assert str(five) == "subtask 0 of b, subtask 0 of c, subtask 0 of d and 3 subtasks of 2 more operators"
    assert five.operators == ("b", "c", "d", "e", "f")


def test_operators_on_a_cycle_of_edges_are_all_first() -> None:
    result = missing_subtasks(subtasks(a=1, b=1), {"a": ("b",), "b": ("a",)}, str)
    assert (result.operators, result.behind) == (("a", "b"), "")
