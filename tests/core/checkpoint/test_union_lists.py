"""Union lists of operators that have partly finished."""

import pytest

from runtime.core.checkpoint.pending import partly_finished_union
from runtime.core.snapshot.manifest import SubtaskSnapshot
from tests.core.builders import manifest

UNION = SubtaskSnapshot(unions={"parts": ("a",)})
EMPTY = SubtaskSnapshot(unions={"parts": ()})
NAMES = {"a": "read", "b": "count"}
PLAIN = SubtaskSnapshot(lists={"offsets": (1,)})


def done(snapshot: SubtaskSnapshot) -> SubtaskSnapshot:
    return SubtaskSnapshot(finished=True, lists=snapshot.lists, unions=snapshot.unions)


@pytest.mark.parametrize(
    "subtasks",
    [
        pytest.param([done(UNION), EMPTY], id="the sole holder has finished"),
        pytest.param([UNION, done(EMPTY), EMPTY], id="another one has finished"),
        pytest.param([done(UNION), PLAIN], id="what is left has declared none"),
        pytest.param([done(EMPTY), EMPTY], id="all are empty"),
    ],
)
def test_a_partly_finished_operator_with_a_union_list_is_named(subtasks: list[SubtaskSnapshot]) -> None:
    """S0-59, S0-60."""
    message = partly_finished_union(manifest({"a": [PLAIN], "b": subtasks}), NAMES)
    assert message == f"count has union lists (parts), and 1 of its {len(subtasks)} subtasks have finished"


@pytest.mark.parametrize(
    "subtasks",
    [
        pytest.param([UNION, EMPTY], id="nothing has finished"),
        pytest.param([done(UNION), done(EMPTY)], id="all have finished"),
        pytest.param([done(PLAIN), PLAIN], id="partly, without a union list"),
    ],
)
def test_others_may_complete(subtasks: list[SubtaskSnapshot]) -> None:
    """S0-60, S0-61."""
    assert partly_finished_union(manifest({"a": [PLAIN], "b": subtasks}), NAMES) is None
