"""Whether a source is polled again before its rows are sent."""

import pytest

from runtime.core.subtask.coalescing import (
    MAX_COALESCED_BYTES,
    MAX_COALESCED_ROWS,
    MAX_COALESCING_MS,
    MIN_LAST_ROWS,
    is_more_wanted,
)

SMALL = {"last_rows": MIN_LAST_ROWS, "rows": MIN_LAST_ROWS, "nbytes": 1, "took_ms": 0.0}


@pytest.mark.parametrize(
    "bound",
    [
        {"last_rows": MIN_LAST_ROWS - 1},
        {"rows": MAX_COALESCED_ROWS},
        {"nbytes": MAX_COALESCED_BYTES},
        {"took_ms": MAX_COALESCING_MS},
    ],
    ids=lambda bound: next(iter(bound)),
)
def test_few_rows_at_hand_and_each_bound_end_the_polls(bound: dict[str, float]) -> None:
    assert is_more_wanted(**SMALL)  # type: ignore[arg-type]
    assert not is_more_wanted(**SMALL | bound)  # type: ignore[arg-type]
