"""The Nexmark queries of Weir; each is a function of the tables."""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

import weir

if TYPE_CHECKING:
    from benchmarks.systems.weir_jobs import Inputs

_BID: Final = ("auction", "bidder", "price", "date_time")
_TEN_S, _TWO_S = timedelta(seconds=10), timedelta(seconds=2)


def _bids(inputs: "Inputs") -> weir.Stream:
    return inputs.table("bids", "date_time")


def read(inputs: "Inputs") -> weir.Stream:
    return _bids(inputs)


def q0(inputs: "Inputs") -> weir.Stream:
    return _bids(inputs).select("columns", *_BID)


def q1(inputs: "Inputs") -> weir.Stream:
    euros = pc.field("price").cast(pa.float64()) * 0.908
    return _bids(inputs).select("columns", "auction", "bidder", "date_time", price=euros)


def q2(inputs: "Inputs") -> weir.Stream:
    auction = pc.field("auction")
    chosen = auction - pc.divide(auction, 123) * 123 == 0  # Arrow has no remainder
    return _bids(inputs).filter("chosen", chosen).select("columns", "auction", "price")


def q5(inputs: "Inputs") -> weir.Stream:
    """Counts per auction and window; the largest count per end of a window; the auctions that have it."""
    windows = (
        _bids(inputs).key_by("auction").window("counts", _TEN_S, "date_time", {"bids": weir.Count()}, slide=_TWO_S)
    )
    counts = windows.select("ends", "auction", "bids", ends=pc.field("window_end"))
    largest = counts.key_by("ends").window("largest", _TWO_S, "ends", {"most": weir.Max("bids")})
    most = largest.select("most", "ends", "most")
    joined = counts.key_by("ends").join(most.key_by("ends")).window("hot", _TWO_S, time=("ends", "ends"))
    hot = joined.filter("hottest", pc.field("bids") == pc.field("most"))
    return hot.select("columns", "auction", "ends", "bids")


def q7(inputs: "Inputs") -> weir.Stream:
    """The largest price of each window, joined with the bids of the window."""
    bids = _bids(inputs).select("bids_columns", *_BID)
    largest = (
        bids.with_columns("every", every=pc.scalar(0))
        .key_by("every")
        .window("largest", _TEN_S, "date_time", {"price": weir.Max("price")})
        .select("largest_columns", "price", start=pc.field("window_start"))
    )
    joined = bids.key_by("price").join(largest.key_by("price")).window("highest", _TEN_S, time=("date_time", "start"))
    return joined.select("columns", *_BID)


def q8(inputs: "Inputs") -> weir.Stream:
    persons = inputs.table("persons", "date_time").select("new", "id", "name", "date_time")
    auctions = inputs.table("auctions", "date_time").select(
        "opened", "seller", auction=pc.field("id"), opened=pc.field("date_time")
    )
    both = persons.key_by("id").join(auctions.key_by("seller")).window("both", _TEN_S, time=("date_time", "opened"))
    return both.select("columns", "id", "name", "auction", start=pc.field("window_start"))
