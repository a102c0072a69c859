"""R5: sessions of cards and their fraud score, in Python: row by row with keyed state, and with an Arrow function."""

from dataclasses import replace
from typing import Final

from benchmarks import fraud
from benchmarks.datasets.payments import CARDS, US_PER_ROW
from benchmarks.datasets.table import DISORDER_MS, EPOCH_US
from benchmarks.workload import Workload
from benchmarks.workloads.variants import SYSTEMS, read_only

ROWS: Final = 1_000_000
#: Sessions that end in the last 60 s are not compared: a system that has not reached their end keeps them open.
_CLOSED: Final = f"make_timestamp({EPOCH_US} + {{rows}}::bigint * {US_PER_ROW} - 60000000)"
_POINTS: Final = f"""
    case when cents >= {fraud.LARGE_PAYMENT} then 20 when cents >= 50000 then 5 else 0 end
    + case when country <> home_country then 15 else 0 end
    + case when channel = 'web' then 3 + if(is_new_device, 10, 0) when channel = 'magstripe' then 8 else 0 end
    + 5 * pin_failures + if(merchant like '%7', 2, 0)
"""
_SCORE: Final = f"""
    points + {fraud.POINTS_PER_PAYMENT} * greatest(payments - {fraud.MANY_PAYMENTS}, 0)
    + if(cents >= {fraud.HIGH_TOTAL}, {fraud.HIGH_TOTAL_POINTS}, 0)
    + if(largest >= {fraud.LARGE_PAYMENT}, {fraud.LARGE_PAYMENT_POINTS}, 0)
"""
_COLUMNS: Final = "card, starts::timestamp as starts, ends::timestamp as ends, payments, cents, score"

R5: Final = Workload(
    name="R5",
    title="sessions of cards and their fraud score, a Python function per row; Parquet into Parquet",
    kind="payments",
    keys=CARDS,
    rows=dict.fromkeys(SYSTEMS, ROWS),
    found=f"select {_COLUMNS} from found where ends < {_CLOSED}",
    expected=f"""
        select {_COLUMNS} from (select *, {_SCORE} as score from (
            select card, make_timestamp(min(ms) * 1000) as starts,
                make_timestamp((max(ms) + {fraud.GAP_MS}) * 1000) as ends, count(*) as payments,
                sum(cents)::bigint as cents, sum(points)::bigint as points, max(cents) as largest
            from (select *, sum(fresh) over (partition by card order by ms, fresh desc) as session
                from (select *, ifnull(ms - lag(ms) over (partition by card order by ms) > {fraud.GAP_MS}, true)::int
                    as fresh from (select *, {_POINTS} as points, epoch_us(event_time) // 1000 as ms from payments)))
            group by card, session
        )) where ends < {_CLOSED}
    """,
    late="select count(*) from payments",
    target=3,
    check_rows=100_000,
    files="parquet",
    dataset="payments",
    disorder_ms=DISORDER_MS,
    sink="files",
)
R5_ARROW: Final = replace(
    R5,
    name="R5-arrow",
    title="sessions of cards and their fraud score, with an Arrow function; Parquet into Parquet",
    kind="payments-arrow",
    target=5,
)
R5_W0: Final = read_only(R5)
