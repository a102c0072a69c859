"""R2: queries of the Nexmark benchmark over bids, auctions and persons; Parquet into Parquet.

q0 passes bids through, q1 converts prices, q2 selects auctions, q3 finds persons of three states with auctions of one
category, q4 the mean closing price of a category, q5 the auctions with the most bids of 10 s every 2 s, q7 the
highest bids of 10 s, q8 the auctions of persons who registered in the same 10 s, q11 the sessions of bidders, q17
statistics of auctions, q18 the last bid of each bidder for each auction. The output of q4, q17 and q18 are updates;
the last one of a key is compared.
"""

from typing import Final

from benchmarks.datasets.nexmark import US_PER_BID, US_PER_SELLER
from benchmarks.datasets.table import DISORDER_MS, EPOCH_US
from benchmarks.workload import Workload
from benchmarks.workloads.variants import SYSTEMS, read_only

ROWS: Final = 10_000_000
#: Fewer rows for queries whose joins, overlapping windows or keys take Structured Streaming much longer.
_FEWER_ROWS: Final = {"q3": 2_000_000, "q5": 3_000_000, "q7": 600_000, "q8": 400_000, "q18": 3_000_000}
_CHECK_ROWS: Final = 400_000
_FEWER_CHECK_ROWS: Final = {"q7": 200_000, "q8": 100_000}
_DATASETS: Final = {"q3": "nexmark-sellers", "q4": "nexmark-auctions", "q8": "nexmark-sellers"}
#: Queries that Structured Streaming refuses.
_ABSENT: Final = {"q4": "it refuses an aggregate over an aggregate without windows, in each output mode"}
#: Windows that end in the last 30 s are not compared: a system that has not reached their end keeps them open.
_CLOSED: Final = f"make_timestamp({EPOCH_US} + {{rows}}::bigint * {{us_per_row}} - 30000000)"
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
    "q3": (
        "persons of three states with auctions of one category",
        """
        select name, city, state, auctions.id as auction from persons join auctions on persons.id = seller
        where state in ('OR', 'ID', 'CA') and category = 10
        """,
        "name, city, state, auction",
    ),
    "q4": (
        "mean of the highest prices of auctions, by category",
        """
        select category, count(*) as auctions, sum(price)::bigint as total, avg(price) as mean
        from (
            select auctions.id, category, max(price) as price
            from auctions join bids on auctions.id = auction and bids.date_time between auctions.date_time and expires
            group by all
        ) group by all
        """,
        "category, auctions, total, mean",
    ),
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
    "q11": (
        "the sessions of bidders, with pauses up to 10 s",
        f"""
        from (
            select bidder, count(*) as bids, make_timestamp(min(ms) * 1000) as starts,
                make_timestamp((max(ms) + 10000) * 1000) as ends
            from (select bidder, ms, sum(fresh) over (partition by bidder order by ms, fresh desc) as session
                from (select bidder, ms, ifnull(ms - lag(ms) over (partition by bidder order by ms) > 10000, true)::int
                    as fresh from (select bidder, epoch_us(date_time) // 1000 as ms from bids)))
            group by bidder, session
        ) where ends < {_CLOSED}
        """,
        "bidder, bids, date_trunc('millisecond', starts) as starts, date_trunc('millisecond', ends) as ends",
    ),
    "q17": (
        "running statistics of auctions by day",
        """
        select auction, date_time::date as day, count(*) as bids, count(*) filter (price < 10000) as low_bids,
            count(*) filter (price >= 10000 and price < 1000000) as middle_bids,
            count(*) filter (price >= 1000000) as high_bids, min(price) as min_price, max(price) as max_price,
            avg(price) as mean_price, sum(price)::bigint as sum_price
        from bids group by all
        """,
        "auction, day, bids, low_bids, middle_bids, high_bids, min_price, max_price, mean_price, sum_price",
    ),
    "q18": (
        "the last bid of each bidder for each auction",
        "select auction, bidder, max(date_time)::timestamp as date_time from bids group by all",
        "auction, bidder, date_time",
    ),
}
_LAST_BIDS: Final = "from bids qualify row_number() over (partition by auction, bidder order by date_time desc) = 1"
#: The part of the output that is compared, per query with windows.
_COMPARED: Final = {
    "q4": " qualify row_number() over (partition by category order by auctions desc, total desc) = 1",
    "q5": f" where ends < {_CLOSED}",
    "q7": f" where {_BUCKET} < {_CLOSED}",
    "q8": f" where start < {_CLOSED}",
    "q11": f" where ends < {_CLOSED}",
    "q17": " qualify row_number() over (partition by auction, day order by bids desc) = 1",
    # Several bids may be the last; a bid that is not in the input is left out and then missing.
    "q18": f" semi join bids using ({_BIDS}, channel, url, extra)"
    " qualify row_number() over (partition by auction, bidder order by date_time desc) = 1",
}
#: Rows that are dropped, per query. In q7 both windows count them; q0 to q3, q17 and q18 drop none.
_LATE: Final = {
    "q4": "select count(*) from (select id from auctions union all select auction from bids)",
    "q5": "select count(*) from bids",
    "q7": "select 2 * count(*) from bids",
    "q8": "select count(*) from (select id from persons union all select id from auctions)",
    "q11": "select count(*) from bids",
}


def query(name: str) -> Workload:
    title, answer, columns = _QUERIES[name]
    dataset = _DATASETS.get(name, "nexmark-bids")
    systems = [system for system in SYSTEMS if system != "spark" or name not in _ABSENT]
    rows = _FEWER_ROWS.get(name, ROWS)
    expected, output_query = (
        f"select {columns} from ({answer})",
        f"select {columns} from found{_COMPARED.get(name, '')}",
    )
    us_per_row = str(US_PER_SELLER if dataset == "nexmark-sellers" else US_PER_BID)
    return Workload(
        name=f"R2-{name}",
        title=f"Nexmark {name}: {title}; Parquet into Parquet",
        kind=f"nexmark-{name}",
        keys=rows,
        rows=dict.fromkeys(systems, rows),
        found=output_query.replace("{us_per_row}", us_per_row),
        expected=expected.replace("{us_per_row}", us_per_row),
        batch=_LAST_BIDS if name == "q18" else "",
        late=_LATE.get(name, ""),
        late_is_bound=name in _DATASETS or name == "q7",  # its join may trail behind its windows
        target=None if name in _ABSENT else 5,
        group="" if name in _ABSENT else "R2",
        absent={"spark": _ABSENT[name]} if name in _ABSENT else {},
        check_rows=_FEWER_CHECK_ROWS.get(name, _CHECK_ROWS),
        files="parquet",
        dataset=dataset,
        disorder_ms=DISORDER_MS,
        sink="files",
    )


R2: Final = tuple(query(name) for name in _QUERIES)
R2_W0: Final = read_only(R2[0])
