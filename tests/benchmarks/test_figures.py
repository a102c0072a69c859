"""The statistics of paired runs."""

import pytest

from benchmarks.figures import ratio


def test_the_ratio_is_the_median_over_pairs_and_lies_in_its_interval() -> None:
    result = ratio([(11.0, 10.0), (24.0, 20.0), (3.9, 3.0), (4.0, 4.0), (6.0, 5.0)])
    assert result.median == pytest.approx(1.2)
    assert result.low is not None
    assert result.high is not None
    assert 1.0 <= result.low < 1.2 < result.high <= 1.3 + 1e-9
    assert result.runs == pytest.approx((1.1, 1.2, 1.3, 1.0, 1.2))


def test_more_pairs_make_it_surer_and_the_same_pairs_the_same() -> None:
    few = [(1.0 + 0.01 * number, 1.0) for number in range(6)]
    first, second = ratio(few), ratio(few * 10)
    assert first.low is not None
    assert first.high is not None
    assert second.low is not None
    assert second.high is not None
    assert second.high - second.low < first.high - first.low
    assert ratio(few) == first


def test_two_pairs_say_nothing_of_how_sure_they_are() -> None:
    result = ratio([(2.0, 1.0), (4.0, 1.0)])
    assert (result.median, result.low, result.high) == (3.0, None, None)
