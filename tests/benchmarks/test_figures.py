"""The statistics of paired runs."""

import pytest

from benchmarks.figures import ratio


def test_the_ratio_is_the_median_over_pairs_and_lies_in_its_interval() -> None:
    found = ratio([(11.0, 10.0), (24.0, 20.0), (3.9, 3.0), (4.0, 4.0), (6.0, 5.0)])
    assert found.median == pytest.approx(1.2)
    assert found.low is not None
    assert found.high is not None
    assert 1.0 <= found.low < 1.2 < found.high <= 1.3 + 1e-9
    assert found.runs == pytest.approx((1.1, 1.2, 1.3, 1.0, 1.2))


def test_more_pairs_make_it_surer_and_the_same_pairs_the_same() -> None:
    few = [(1.0 + 0.01 * number, 1.0) for number in range(6)]
    one, other = ratio(few), ratio(few * 10)
    assert one.low is not None
    assert one.high is not None
    assert other.low is not None
    assert other.high is not None
    assert other.high - other.low < one.high - one.low
    assert ratio(few) == one


def test_two_pairs_say_nothing_of_how_sure_they_are() -> None:
    found = ratio([(2.0, 1.0), (4.0, 1.0)])
    assert (found.median, found.low, found.high) == (3.0, None, None)
