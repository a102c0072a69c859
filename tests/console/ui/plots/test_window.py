"""The time that plots show, from the address of the page."""

from datetime import UTC, datetime, timedelta

import pytest

from console.ui.plots.window import CELL_COLUMNS, LINE_POINTS, SPANS, chosen, window

NOW = datetime(2026, 11, 23, 10, 7, 13, 250_000, tzinfo=UTC)


@pytest.mark.parametrize("span", SPANS, ids=lambda span: span.name)
def test_a_span_ends_soon_after_the_present_and_has_few_points(span: object) -> None:
    assert isinstance(span, type(SPANS[0]))
    result = window({"span": span.name}, NOW)
    assert result.is_moving
    assert timedelta() <= result.end - NOW < span.refresh
    assert result.end - result.begin == span.length
    assert result.lines.size <= LINE_POINTS + 2
    assert result.cells.size <= CELL_COLUMNS + 2
    assert window({"span": span.name}, result.end) == result, "it stands until the next refresh"
    widths = [tick.width for tick in result.ticks]
    assert sum(widths) == pytest.approx(100 - result.ticks[0].at, abs=0.01)
    assert len(widths) <= 8


def test_the_past_stands_still() -> None:
    result = window({"span": "6h", "until": "2026-11-22T06:00:00Z"}, NOW)
    assert (result.is_moving, result.end) == (False, datetime(2026, 11, 22, 6, tzinfo=UTC))


@pytest.mark.parametrize(
    "until", ["", "soon", "2026-11-22T06:00:00", "2099-01-01T00:00:00Z", "9" * 40, "0001-01-01T00:00:00+14:00"]
)
def test_a_time_that_makes_no_sense_or_is_to_come_is_the_present(until: str) -> None:
    assert window({"span": "x", "until": until}, NOW) == window({}, NOW)


@pytest.mark.parametrize(
    ("begin", "end"), [("", ""), ("2026-11-23T10:00:00Z", ""), ("2026-11-23T10:00:00Z", "2026-11-23T09:00:00Z")]
)
def test_an_interval_without_two_times_in_order_is_none(begin: str, end: str) -> None:
    assert chosen({"from": begin, "to": end}) is None
