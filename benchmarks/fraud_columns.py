"""The rules of `fraud.py` over Arrow columns, as Arrow functions of Weir and of Structured Streaming."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import fraud

Column = Any  #: an Arrow array; the functions of `pyarrow.compute` have no types


def points(
    cents: Column, country: Column, home: Column, channel: Column, is_new: Column, failures: Column, merchant: Column
) -> Column:
    """The points of each payment; arguments in the order of `fraud.COLUMNS`."""
    by_size = pc.case_when(
        pc.make_struct(pc.greater_equal(cents, fraud.LARGE_PAYMENT), pc.greater_equal(cents, 50_000)), 20, 5, 0
    )
    on_web = pc.if_else(is_new, 13, 3)
    by_channel = pc.case_when(pc.make_struct(pc.equal(channel, "web"), pc.equal(channel, "magstripe")), on_web, 8, 0)
    abroad = _points_if(pc.not_equal(country, home), 15)
    suspicious = _points_if(pc.ends_with(merchant, "7"), 2)
    total = pc.multiply(failures, 5)
    for term in (by_size, by_channel, abroad, suspicious):
        total = pc.add(total, term)
    return total


def score(payments: Column, cents: Column, sum_of_points: Column, largest: Column) -> Column:
    """The score of each session."""
    beyond = pc.max_element_wise(pc.subtract(payments, fraud.MANY_PAYMENTS), pa.scalar(0, pa.int64()))
    total = pc.add(sum_of_points, pc.multiply(beyond, fraud.POINTS_PER_PAYMENT))
    total = pc.add(total, _points_if(pc.greater_equal(cents, fraud.HIGH_TOTAL), fraud.HIGH_TOTAL_POINTS))
    return pc.add(total, _points_if(pc.greater_equal(largest, fraud.LARGE_PAYMENT), fraud.LARGE_PAYMENT_POINTS))


def _points_if(condition: Column, count: int) -> Column:
    return pc.if_else(condition, pa.scalar(count, pa.int64()), pa.scalar(0, pa.int64()))
