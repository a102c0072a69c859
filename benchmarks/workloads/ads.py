"""R1: the Yahoo streaming benchmark. Ad events are filtered, joined with campaigns and counted in windows of 10 s."""

from dataclasses import replace
from typing import Final

from benchmarks.datasets.ads import ADS, US_PER_ROW
from benchmarks.datasets.table import DISORDER_MS, EPOCH_US
from benchmarks.workload import Workload
from benchmarks.workloads.variants import SYSTEMS, as_json, read_only

ROWS: Final = 60_000_000
JSON_ROWS: Final = 5_000_000
_WINDOW_S: Final = 10
#: Windows of the last 20 s are not compared: a system that has not reached their end keeps them open.
_CLOSED: Final = f"make_timestamp({EPOCH_US} + {{rows}}::bigint * {US_PER_ROW} - {2 * _WINDOW_S * 1_000_000})"
_JOINED: Final = "from events join campaigns using (ad_id) where event_type = 'view'"

R1: Final = Workload(
    name="R1",
    title="Yahoo ads: filter, join of ads to campaigns, views per campaign in 10 s; Parquet into Postgres (upserts)",
    kind="ads",
    keys=ADS,
    rows=dict.fromkeys(SYSTEMS, ROWS),
    found=f"select campaign_id, window_start, views from found where window_start < {_CLOSED}",
    expected=f"""
        from (
            select campaign_id, time_bucket(interval '{_WINDOW_S} seconds', event_time) as window_start,
                count(*) as views
            {_JOINED} group by all
        ) where window_start < {_CLOSED}
    """,
    late=f"select count(*) {_JOINED}",
    target=5,
    check_rows=500_000,
    files="parquet",
    dataset="ads",
    disorder_ms=DISORDER_MS,
    sink="postgres",
    output={"campaign_id": "text", "window_start": "timestamp", "views": "bigint"},
    output_key=("campaign_id", "window_start"),
)
R1_JSON: Final = replace(as_json(R1, JSON_ROWS), rows={**dict.fromkeys(SYSTEMS, JSON_ROWS), "pathway": JSON_ROWS})
R1_W0: Final = read_only(R1)
R1_JSON_W0: Final = read_only(R1_JSON)
