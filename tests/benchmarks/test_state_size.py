"""W9, small: that it measures what it says."""

from pathlib import Path

import pytest

from benchmarks.state.size import CASES, VALUE_BYTES, Case, measure_case


@pytest.mark.parametrize("form", sorted({case.form for case in CASES}))
def test_every_checkpoint_that_counts_has_a_hundredth_of_the_keys(form: str, tmp_path: Path) -> None:
    """S4-02."""
    case = Case(form=form, megabytes=1, checkpoints=15, interval_ms=100)
    costs = measure_case(case, tmp_path)
    assert {cost.changed_bytes for cost in costs} == {case.keys // 100 * VALUE_BYTES}
    assert all(cost.changed_bytes < cost.written_bytes for cost in costs)
    assert all(cost.duration_ms >= cost.async_ms for cost in costs)
    assert all(cost.files <= cost.named_files for cost in costs)
