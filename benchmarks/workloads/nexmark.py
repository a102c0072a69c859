"""R2: queries of the Nexmark benchmark over bids, auctions and persons; Parquet into Parquet.

q0 passes bids through, q1 converts prices, q2 selects auctions, q5 finds the auctions with the most bids of 10 s every
2 s, q7 the highest bids of 10 s, q8 the auctions of persons who registered in the same 10 s.
"""

from typing import Final

from benchmarks.datasets.nexmark import US_PER_BID
from benchmarks.datasets.table import DISORDER_MS, EPOCH_US
from benchmarks.workload import Workload
from benchmarks.workloads.variants import SYSTEMS, read_only

ROWS: Final = 10_000_000  #: bids
#: Windows that end in the last 30 s are not compared: a system that has not reached their end keeps them open.
_CLOSED: Final = f"make_timestamp({EPOCH_US} + {{rows}}::bigint * {US_PER_BID} - 30000000)"
_BUCKET: Final = "time_bucket(interval '10 seconds', date_time)"
_BIDS: Final = "auction, bidder, price, date_time"

#: Query -> title, answer, columns of the answer. Windows of q5 are named by their end.
_QUERIES: Final[dict[str, tuple[str, str, str]]] = {
    "q0": ("all bids, unchanged", f"select {_BIDS}::timestamp as date_time from bids", _BIDS),
    "q1": (
        "bids with prices in euros",
        "select auction, bidder, price * 0.908::double as price, date_time::timestamp as date_time from bids",
        _BIDS,
    ),
    "q2": ("bids of chosen auctions", "select auction, price from bids where auction % 123 = 0", "auction, price"),
    "q5": (
        "the auctions with the most bids in 10 s, every 2 s",
        f"""
        from (
            select auction, make_timestamp(ends * 2000000) as ends, count(*) as bids
            from (select auction, unnest(range(pane + 1, pane + 6)) as ends
                from (select auction, epoch_us(date_time) // 2000000 as pane from bids))
            group by all
        ) where ends < {_CLOSED} qualify bids = max(bids) over (partition by ends)
        """,
        "auction, ends, bids",
    ),
    "q7": (
        "the highest bids in 10 s",
        f"""
        select {_BIDS}::timestamp as date_time from (select *, {_BUCKET} as start from bids) where start < {_CLOSED}
        qualify price = max(price) over (partition by start)
        """,
        _BIDS,
    ),
    "q8": (
        "persons who registered, and their auctions of the same 10 s",
        f"""
        select persons.id, name, auctions.id as auction, persons.start::timestamp as start
        from (select *, {_BUCKET} as start from persons) as persons
        join (select *, {_BUCKET} as start from auctions) as auctions
        on persons.id = seller and persons.start = auctions.start where persons.start < {_CLOSED}
        """,
        "id, name, auction, start",
    ),
}
#: The part of the output that is compared, per query with windows.
_COMPARED: Final = {
    "q5": f" where ends < {_CLOSED}",
    "q7": f" where {_BUCKET} < {_CLOSED}",
    "q8": f" where start < {_CLOSED}",
}
#: Rows that windows drop, per query. In q7 both windows count them; q0 to q2 drop none.
_LATE: Final = {
    "q5": "select count(*) from bids",
    "q7": "select 2 * count(*) from bids",
    "q8": "select count(*) from (select id from persons union all select id from auctions)",
}


def query(name: str) -> Workload:
    title, answer, columns = _QUERIES[name]
    return Workload(
        name=f"R2-{name}",
        title=f"Nexmark {name}: {title}; Parquet into Parquet",
        kind=f"nexmark-{name}",
        keys=ROWS,
        rows=dict.fromkeys(SYSTEMS, ROWS),
        found=f"select {columns} from found{_COMPARED.get(name, '')}",
        expected=f"select {columns} from ({answer})",
        late=_LATE.get(name, ""),
        target=5,
        check_rows=400_000,
        files="parquet",
        dataset="nexmark",
        disorder_ms=DISORDER_MS,
        sink="files",
    )


R2: Final = tuple(query(name) for name in _QUERIES)
R2_W0: Final = read_only(R2[0])
