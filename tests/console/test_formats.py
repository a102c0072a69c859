from datetime import UTC, datetime, timedelta

import pytest

from console import formats
from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(None, "–"), (0, "0 B"), (812, "812 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (86_311, "84 KiB"),
     (1_258_942, "1.2 MiB"), (1024**2 - 1, "1.0 MiB"), (3 * 1024**4, "3.0 TiB"), (5 * 1024**6, "5120 PiB")],
)  # fmt: skip
def test_sizes_are_binary_with_two_digits(nbytes: int | None, text: str) -> None:
    assert str(formats.size(nbytes)) == text


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(None, "– "), (0.0, "0 /s"), (0.4, "0.4 /s"), (12.4, "12 /s"), (999.6, "1.0 k/s"), (84_211.4, "84 k/s"),
     (1_230_000.0, "1.2 M/s")],
)  # fmt: skip
def test_rates_carry_si_letters(per_second: float | None, text: str) -> None:
    assert str(formats.rate(per_second)) == text.strip()


@pytest.mark.parametrize(
    ("ms", "text"),
    [(None, "–"), (0, "0 ms"), (-4, "0 ms"), (1.2, "1.2 ms"), (48, "48 ms"), (99.6, "0.10 s"), (312, "0.31 s"),
     (996, "1.0 s"), (4_210, "4.2 s"), (42_000, "42 s"), (192_000, "3 min 12 s"), (180_000, "3 min"),
     (11_520_000, "3 h 12 min"), (187_200_000, "2 d 4 h"), (86_400_000, "1 d")],
)  # fmt: skip
def test_durations_use_one_unit_below_a_minute_and_two_above(ms: float | None, text: str) -> None:
    assert str(formats.duration(ms)) == text


def test_counts_are_grouped_by_narrow_spaces() -> None:
    assert formats.count(336_776) == "336\u202f776"
    assert formats.count(None) == "–"


@pytest.mark.parametrize(("share", "text"), [(0.0, "0 %"), (0.314, "31 %"), (1.7, "100 %"), (-1.0, "0 %"), (None, "–")])
def test_shares_are_kept_within_bounds(share: float | None, text: str) -> None:
    assert str(formats.percent(share)) == text


@pytest.mark.parametrize(
    ("back", "text"),
    [(timedelta(), "now"), (timedelta(seconds=14), "14 s ago"), (timedelta(seconds=-3), "now"),
     (timedelta(minutes=9, seconds=2), "9 min 2 s ago"), (timedelta(days=6, hours=23), "6 d 23 h ago"),
     (timedelta(days=7), "2026-02-22")],
)  # fmt: skip
def test_moments_are_relative_for_a_week(back: timedelta, text: str) -> None:
    assert formats.ago(NOW - back, NOW) == text


def test_a_moment_that_never_came() -> None:
    assert formats.ago(None, NOW) == "never"
    assert formats.since(None, NOW) == "–"


def test_less_than_a_second_is_no_zero() -> None:
    """A checkpoint of 45 ms read "Duration 0 s"."""
    assert formats.since(NOW - timedelta(milliseconds=45), NOW) == "under 1 s"


def test_a_fresh_watermark_is_a_lag_and_a_historic_one_its_own_time() -> None:
    now_ms = int(NOW.timestamp() * 1000)
    assert str(formats.watermark(now_ms - 240_000, NOW)) == "lag 4 min"
    assert str(formats.watermark(1_371_024_000_000, NOW)) == "2013-06-12 08:00"


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [(None, "–"), (MIN_WATERMARK, "–"), (MAX_WATERMARK, "end of data"), (-(2**62), f"{-(2**62)} ms")],
)
def test_watermarks_at_the_ends_of_time(time_ms: int | None, text: str) -> None:
    assert str(formats.watermark(time_ms, NOW)) == text
