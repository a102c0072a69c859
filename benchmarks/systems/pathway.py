"""Pathway: a Rust engine with two worker threads, in its own Python process, and a snapshot of the input each second.

It has no reader of Parquet, so it runs Yahoo ads (R1) over JSON lines. Within a minibatch no row is too late, so a
minibatch is a small share of the rows. Its results are upserted in a transaction. Windows have a cutoff as long as the
disorder. After a SIGKILL the same program computes the rows of its snapshots again and goes on with the rest of the
files; snapshots of operators need a licence key. The licence (BSL 1.1) permits free use on a single machine.
"""

import os
import time
from datetime import timedelta
from urllib.parse import urlsplit

import pathway as pw
from pathway.internals.parse_graph import G

from benchmarks import protocol
from benchmarks.datasets import ads
from benchmarks.protocol import Task

_TIME = "%Y-%m-%dT%H:%M:%S.%f"
_WINDOW = timedelta(seconds=10)
_MINIBATCHES = 32  #: at least
_USED = {"events": ("ad_id", "event_type", "event_time"), "campaigns": ("ad_id", "campaign_id")}


def read(task: Task, phase: str, table: str) -> pw.Table:
    """The used columns of a table as text."""
    schema = pw.schema_from_types(**dict.fromkeys(_USED[table], str))
    rows = task.check_rows if phase == "check" else task.rows
    return pw.io.fs.read(
        task.input(phase) / table, format="json", schema=schema, mode="static", max_backlog_size=rows // _MINIBATCHES
    )


def views(task: Task, phase: str) -> pw.Table:
    events, campaigns = (read(task, phase, table) for table in ads.TABLES)
    viewed = events.filter(pw.this.event_type == "view").select(
        pw.this.ad_id, time=pw.this.event_time.dt.strptime(_TIME)
    )
    joined = viewed.join(campaigns, pw.left.ad_id == pw.right.ad_id).select(pw.right.campaign_id, pw.left.time)
    windows = joined.windowby(
        pw.this.time,
        window=pw.temporal.tumbling(_WINDOW),
        instance=pw.this.campaign_id,
        behavior=pw.temporal.common_behavior(cutoff=timedelta(milliseconds=task.disorder_ms)),
    )
    return windows.reduce(
        campaign_id=pw.this._pw_instance, window_start=pw.this._pw_window_start, views=pw.reducers.count()
    )


def run(task: Task, phase: str) -> None:
    """Runs the program over all files."""
    G.clear()
    counts = views(task, phase)
    at = urlsplit(task.database)
    settings = {
        "host": at.hostname, "port": at.port, "dbname": at.path[1:], "user": at.username, "password": at.password,
    }  # fmt: skip
    keys = [counts[name] for name in task.output_key]
    pw.io.postgres.write(counts, settings, protocol.table_of(phase), output_table_type="snapshot", primary_key=keys)
    backend = pw.persistence.Backend.filesystem(task.checkpoints(phase))
    persistence = pw.persistence.Config(backend, snapshot_interval_ms=task.interval_ms)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=persistence)


def main() -> None:
    task = protocol.read_task()
    os.environ["PATHWAY_THREADS"] = str(task.parallelism)
    if not task.resumes:
        run(task, "check")
        protocol.send_checked(rows=task.check_rows, format="csv", columns={}, pattern="*.csv")
    protocol.send_started()
    began = time.monotonic()
    run(task, "measure")
    protocol.send_measured(rows=task.rows, seconds=time.monotonic() - began)


if __name__ == "__main__":
    main()
