"""The Nexmark queries of Weir; each is a function of the tables."""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

import weir
from benchmarks.datasets.nexmark import MAX_OPEN_S

if TYPE_CHECKING:
    from benchmarks.systems.weir_inputs import WeirInputs

_BID: Final = ("auction", "bidder", "price", "date_time")
_TEN_S, _TWO_S, _DAY = timedelta(seconds=10), timedelta(seconds=2), timedelta(days=1)
_DAY_MS: Final = 86_400_000


def _bids(inputs: "WeirInputs") -> weir.Stream:
    return inputs.table("bids", "date_time")


def read(inputs: "WeirInputs") -> weir.Stream:
    return _bids(inputs)


def q0(inputs: "WeirInputs") -> weir.Stream:
    return _bids(inputs).select("columns", *_BID)


def q1(inputs: "WeirInputs") -> weir.Stream:
    euros = pc.field("price").cast(pa.float64()) * 0.908
    return _bids(inputs).select("columns", "auction", "bidder", "date_time", price=euros)


def q2(inputs: "WeirInputs") -> weir.Stream:
    auction = pc.field("auction")
    condition = auction - pc.divide(auction, 123) * 123 == 0  # Arrow has no remainder
    return _bids(inputs).filter("chosen", condition).select("columns", "auction", "price")


def q3(inputs: "WeirInputs") -> weir.Stream:
    """All pairs: the bounds of the join and of the disorder are longer than the tables, so every row is kept."""
    persons = inputs.table("persons", "date_time", disorder_ms=_DAY_MS)
    auctions = inputs.table("auctions", "date_time", disorder_ms=_DAY_MS)
    near = persons.filter("states", pc.field("state").isin(["OR", "ID", "CA"]))
    opened = auctions.filter("categories", pc.field("category") == 10).select(
        "opened", "seller", auction=pc.field("id"), opened=pc.field("date_time")
    )
    pairs = near.key_by("id").interval_join(opened.key_by("seller"))
    sold = pairs.between("sold", -_DAY, _DAY, time=("date_time", "opened"))
    return sold.select("columns", "name", "city", "state", "auction")


def q4(inputs: "WeirInputs") -> weir.Stream:
    """The highest price per auction as a changelog; its sum and count per category."""
    auctions = inputs.table("auctions", "date_time").select(
        "opened", "id", "category", "expires", opened=pc.field("date_time")
    )
    bids = _bids(inputs).select("prices", "auction", "price", "date_time")
    pairs = auctions.key_by("id").interval_join(bids.key_by("auction"))
    open_bids = pairs.between("open", timedelta(0), timedelta(seconds=MAX_OPEN_S), time=("opened", "date_time"))
    time = pc.field("date_time")  # in microseconds; the join compares milliseconds
    in_time = open_bids.filter("in_time", (time >= pc.field("opened")) & (time <= pc.field("expires")))
    changes = in_time.key_by("id", "category").aggregate("highest", {"price": weir.Max("price")}, changelog=True)
    sign = pc.if_else(pc.field("op") == "update_before", -1, 1)
    signed = changes.select("signed", "category", sign=sign, price=pc.field("price") * sign)
    totals = signed.key_by("category").aggregate("totals", {"auctions": weir.Sum("sign"), "total": weir.Sum("price")})
    mean = pc.field("total").cast(pa.float64()) / pc.field("auctions").cast(pa.float64())
    return totals.with_columns("mean", mean=mean)


def q5(inputs: "WeirInputs") -> weir.Stream:
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


def q7(inputs: "WeirInputs") -> weir.Stream:
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


def q8(inputs: "WeirInputs") -> weir.Stream:
    persons = inputs.table("persons", "date_time").select("new", "id", "name", "date_time")
    auctions = inputs.table("auctions", "date_time").select(
        "opened", "seller", auction=pc.field("id"), opened=pc.field("date_time")
    )
    sellers = persons.key_by("id").join(auctions.key_by("seller")).window("both", _TEN_S, time=("date_time", "opened"))
    return sellers.select("columns", "id", "name", "auction", start=pc.field("window_start"))


def q11(inputs: "WeirInputs") -> weir.Stream:
    bids = _bids(inputs).key_by("bidder").session_window("sessions", _TEN_S, "date_time", {"bids": weir.Count()})
    return bids.select("columns", "bidder", "bids", starts=pc.field("window_start"), ends=pc.field("window_end"))


def q17(inputs: "WeirInputs") -> weir.Stream:
    """Running statistics: every batch emits the new values of its auctions."""
    price = pc.field("price")
    ranked = _bids(inputs).select(
        "ranks",
        "auction",
        "price",
        day=pc.field("date_time").cast(pa.date32(), safe=False),
        low=price < 10_000,
        middle=(price >= 10_000) & (price < 1_000_000),
        high=price >= 1_000_000,
    )
    statistics = {
        "bids": weir.Count(),
        **{f"{rank}_bids": weir.CountIf(rank) for rank in ("low", "middle", "high")},
        "min_price": weir.Min("price"),
        "max_price": weir.Max("price"),
        "mean_price": weir.Mean("price"),
        "sum_price": weir.Sum("price"),
    }
    return ranked.key_by("auction", "day").aggregate("statistics", statistics)


def q18(inputs: "WeirInputs") -> weir.Stream:
    return _bids(inputs).key_by("bidder", "auction").latest("last", "date_time")
