"""Axes end at round numbers, just above the largest value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.ui.plots import scale


@given(st.floats(0, 1e15, allow_nan=False))
def test_the_largest_value_fits_and_uses_more_than_half_of_the_height(largest: float) -> None:
    for axis in (scale.rates(largest), scale.sizes(largest), scale.durations(largest)):
        assert axis.most >= largest
        assert largest <= 1 or axis.most <= 2 * largest


@pytest.mark.parametrize(
    ("axis", "labels"),
    [
        (scale.rates(101_000), ("120 k/s", "60 k/s")),
        (scale.sizes(380 * 2**20), ("384 MiB", "192 MiB")),
        (scale.durations(0), ("1.0 ms", "0.5 ms")),
        (scale.durations(1_450), ("1.6 s", "0.80 s")),
        (scale.durations(95_000), ("2 min", "1 min")),
        (scale.durations(5.5 * 86_400_000), ("6 d", "3 d")),
    ],
)
def test_labels(axis: scale.Scale, labels: tuple[str, str]) -> None:
    assert tuple(str(label) for label in axis.labels) == labels
