"""R3: ShuffleBench. A million consumers with a black box as state get records of 1 KB; each tenth makes an event.

A consumer is `AdvancedStateConsumer` of ShuffleBench: 64 bytes with the count of its records, the sum of their leading
numbers, the times of the first and the last of them, and 32 bytes of the last. An event has the count and the sum; then
the state is cleared. The leading number is the same in all records of a consumer, so events do not depend on the order
of records.
"""

from typing import Final

from benchmarks.datasets.records import CONSUMERS, NUMBER_DIGITS
from benchmarks.datasets.table import DISORDER_MS
from benchmarks.workload import Workload
from benchmarks.workloads.variants import SYSTEMS, read_only

RECORDS_PER_EVENT: Final = 10
ROWS: Final = 2_000_000
_NUMBER: Final = f"cast(min(left(record, {NUMBER_DIGITS})) as bigint)"

R3: Final = Workload(
    name="R3",
    title="ShuffleBench: records of 1 KB to a million consumers with black-box state; Parquet into Parquet",
    kind="records",
    keys=CONSUMERS,
    rows=dict.fromkeys(SYSTEMS, ROWS),
    found="select consumer, records, sum from found",
    expected=f"""
        select consumer, {RECORDS_PER_EVENT} as records, {RECORDS_PER_EVENT} * number as sum from (
            select consumer, {_NUMBER} as number, unnest(range(count(*) // {RECORDS_PER_EVENT}))
            from records group by consumer
        )
    """,
    target=3,
    check_rows=100_000,
    files="parquet",
    dataset="records",
    disorder_ms=DISORDER_MS,
    sink="files",
)
R3_W0: Final = read_only(R3)
