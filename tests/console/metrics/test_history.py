"""The history that a job master writes: a real run on threads, real Postgres, and Postgres in trouble."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from django.db import connection, transaction

from console.jobs.models import Run
from console.metrics import partitions
from console.metrics.models import FINEST_STEP_S, Metrics, SubtaskMetrics
from runtime.clock import SystemClock
from runtime.core.checkpoint.coordinator import Coordinator
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.builder import Dataflow
from runtime.errors import EnvironmentFailure
from runtime.io.filesystem import FileStore
from runtime.io.postgres.store import PostgresRunStore
from runtime.launch.local import LocalLauncher
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from runtime.master.live_report import LiveReports
from runtime.master.metrics_history import MetricsHistory
from runtime.master.slot_monitor import SlotMonitor
from runtime.run_store import MetricsInterval
from tests.console.metrics.test_partitions import remove_partitions
from tests.contracts.test_records import make_run, url
from tests.jobs.gated import Gated
from tests.jobs.numbers import Numbers, counts
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


class Shifted(SystemClock):
    """A clock whose wall clock may be changed; its monotonic clock goes on."""

    shift_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.shift_ms


def master_of(
    run: Run, flow: Dataflow, storage: Path, records: PostgresRunStore, clock: SystemClock | None = None
) -> JobMaster:
    config = MasterConfig(
        job_id=str(run.job_id), token=Token(run.token), job=flow.compile(2), storage=str(storage),
        coordinator=CoordinatorSettings(interval_ms=30, min_pause_ms=0),
        restart=FixedDelay(attempts=3, delay_ms=10),
    )  # fmt: skip
    return JobMaster(config, records, FileStore(str(storage)), LocalLauncher(), clock or SystemClock())


@contextmanager
def running(flow: Dataflow, storage: Path, clock: SystemClock | None = None) -> Iterator[tuple[Run, JobMaster]]:
    """A run on threads whose records are in Postgres; it is canceled at the end of the block."""
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    master = master_of(run, flow, storage, records, clock)
    thread = threading.Thread(target=master.run, daemon=True)
    thread.start()
    try:
        yield run, master
    finally:
        master.release()
        thread.join(60)
        records.close()
        assert not thread.is_alive()


def test_a_run_leaves_its_numbers_behind(tmp_path: Path) -> None:
    """Records and bytes of each operator add up to what was read; the run as a whole reads what its sources give."""
    run, source = make_run(), Numbers(total=2_000)
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    exit_code = master_of(run, counts(source, tmp_path / "out"), tmp_path / "s", records).run()
    records.close()
    assert exit_code is MasterExitCode.DONE
    rows = Metrics.objects.filter(run_id=run.pk, step_s=FINEST_STEP_S)
    total = source.total * source.splits
    sums = {uid: [row for row in rows if row.operator == uid] for uid in ("", "numbers", "counts", "out")}
    assert all(sums.values())
    assert sum(row.records_out for row in sums["numbers"]) == total
    assert sum(row.records_in for row in sums["counts"]) == sum(row.records_in for row in sums[""]) == total
    assert sum(row.bytes_out for row in sums["numbers"]) == sum(row.bytes_in for row in sums["counts"]) > 8 * total
    completed = run.checkpoints.filter(status="completed")
    assert sum(row.checkpoints or 0 for row in sums[""]) == completed.count() > 0
    assert max(row.checkpoint_ms or 0 for row in sums[""]) >= max(each.duration_ms or 0 for each in completed)
    assert all(0 <= (row.commit_ms or 0) <= (row.checkpoint_ms or 0) for row in sums[""])
    assert any(row.commit_ms is not None for row in sums[""])
    assert all(row.cpu_ms is not None and row.memory_bytes for row in sums[""])
    assert any(row.sync_ms is not None for row in sums["counts"])
    subtasks = [row.operators["counts"] for row in SubtaskMetrics.objects.filter(run_id=run.pk)]
    assert sum(sum(each["records_in"]) for each in subtasks) == total
    assert all(each["index"] == [0, 1] for each in subtasks)


def fail_once(marker: Path) -> Callable[..., object]:
    def trouble(batch: object) -> object:
        if not marker.exists():
            marker.touch()
            raise OSError("it fails once")
        return batch

    return trouble


def test_no_row_counts_twice_and_no_counter_falls_when_an_attempt_restarts(tmp_path: Path) -> None:
    """Counters of slots begin again with the attempt. Rows of both attempts stand side by side, each with increases."""
    run, source = make_run(), Numbers(total=500)
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    flow = counts(source, tmp_path / "out", fail_once(tmp_path / "failed"))
    assert master_of(run, flow, tmp_path / "s", records).run() is MasterExitCode.DONE
    records.close()
    assert run.attempts.count() == 1, "the first attempt of this test has no row"
    rows = list(Metrics.objects.filter(run_id=run.pk, operator="counts"))
    assert len({row.token for row in rows}) == 2
    last = max(row.token for row in rows)
    assert sum(row.records_in for row in rows if row.token == last) <= source.total * source.splits
    assert sum(row.records_in for row in rows) >= source.total * source.splits
    assert min(row.records_in for row in rows) >= 0


@pytest.mark.parametrize("table", ["weir_metrics", "weir_subtask_metrics"])
def test_a_slow_insert_delays_no_checkpoint(table: str, tmp_path: Path) -> None:
    """The insert waits for a table lock for as long as the test likes; checkpoints complete meanwhile."""
    with running(counts(Gated(total=1_000), tmp_path / "out"), tmp_path / "s") as (run, _):
        until(lambda: run.checkpoints.filter(status="completed").exists())
        with psycopg.connect(url()) as other:
            other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            until(lambda: waiting_inserts() > 0)
            newest = run.checkpoints.latest("number").number
            until(lambda: run.checkpoints.filter(status="completed", number__gt=newest + 5).exists())
        until(lambda: Metrics.objects.filter(run_id=run.pk, operator="").exists())


def waiting_inserts() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        cursor.execute(waiting, ["%INSERT INTO weir_metrics%"])
        return int(cursor.fetchone()[0])


def test_a_history_that_postgres_refuses_stops_no_job(tmp_path: Path) -> None:
    """A master of a newer version against tables of an older one: the job ends as it should, without a history."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE weir_metrics RENAME COLUMN skew TO another")
    try:
        run = make_run()
        records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
        exit_code = master_of(run, counts(Numbers(total=500), tmp_path / "out"), tmp_path / "s", records).run()
        records.close()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE weir_metrics RENAME COLUMN another TO skew")
    run.refresh_from_db()
    assert (exit_code, run.state) == (MasterExitCode.DONE, "finished")


def test_the_history_follows_the_wall_clock_after_a_suspension(tmp_path: Path) -> None:
    """While a host is suspended its monotonic clock stands still."""
    clock = Shifted()
    with running(counts(Gated(total=1_000), tmp_path / "out"), tmp_path / "s", clock) as (run, _):
        until(lambda: run.checkpoints.filter(status="completed").exists())
        clock.shift_ms = 3_600_000
        later = datetime.now(UTC) + timedelta(minutes=59)
        until(lambda: Metrics.objects.filter(run_id=run.pk, at__gt=later).exists())


def reports_of(run: Run, records: PostgresRunStore) -> LiveReports:
    """Reports with a number each; the first ends an interval of the history."""
    graph, count = counts(Numbers(total=1), Path("out")).compile(2).graph, itertools.count()
    return LiveReports(
        SlotMonitor(graph),
        Coordinator("1", Token(run.token), graph, CoordinatorSettings()),
        MetricsHistory(graph, now_ms=1_000),
        records,
        lambda: {"report": next(count)},
        lambda: 10_000,
    )


def test_reports_go_on_if_postgres_refuses_numbers() -> None:
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    reports = reports_of(run, records)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE weir_metrics ADD CONSTRAINT refused CHECK (span_ms / 0 = 1)")
    try:
        reports.write_if_due(1_000)
        reports.write_last(2_000, is_end=True)
        reports.close(timeout_s=30)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE weir_metrics DROP CONSTRAINT refused")
    run.refresh_from_db()
    assert run.live is not None
    assert run.live["report"] == 1
    records.close()


def interval(at: datetime) -> MetricsInterval:
    row = {"operator": "", "span_ms": 5_000, "records_in": 1, "records_out": 1, "bytes_in": 0, "bytes_out": 0}
    return MetricsInterval(at=int(at.timestamp() * 1_000), rows=[row], subtasks={})


def test_an_insert_that_waits_while_its_partition_is_made_may_be_repeated() -> None:
    """Postgres has chosen the default partition for its rows, and then finds that they belong to the new partition."""
    run, now = make_run(), datetime(2026, 11, 23, 10, 5, tzinfo=UTC)
    records, refused = PostgresRunStore(url(), run.pk, Token(run.token), 128), list[Exception]()

    def insert() -> None:
        try:
            records.add_history([interval(now)])
        except Exception as error:
            refused.append(error)

    thread = threading.Thread(target=insert)
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("LOCK TABLE weir_metrics_5s_rest IN ACCESS EXCLUSIVE MODE")
            thread.start()
            until(lambda: waiting_inserts() > 0)
            partitions.create_partitions(now)
        thread.join()
        assert [type(error) for error in refused] == [EnvironmentFailure]
        records.add_history([interval(now)])
        assert Metrics.objects.get(step_s=FINEST_STEP_S).at == now
    finally:
        records.close()
        remove_partitions()


def test_a_report_waits_for_no_lock_for_long() -> None:
    """The start of an attempt and the end of a run may wait for a report."""
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    with psycopg.connect(url()) as other:
        other.execute("LOCK TABLE weir_metrics IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(EnvironmentFailure, match="lock timeout"):
            records.add_history([interval(datetime.now(UTC))])
    records.close()


def test_a_report_that_waits_for_the_database_ends_with_its_attempt() -> None:
    """A report that an older attempt has queued would otherwise take the token of the next attempt."""
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    reports = reports_of(run, records)
    with psycopg.connect(url()) as other:
        other.execute("LOCK TABLE weir_metrics IN ACCESS EXCLUSIVE MODE")
        reports.write_if_due(1_000)
        until(lambda: waiting_inserts() > 0)
        reports.write_last(2_000, is_end=False)
        reports.close(timeout_s=0.01)
        token = records.next_attempt("failed", {})
        assert token is not None
        run.refresh_from_db()
        before = run.live
    reports.close(timeout_s=30)
    run.refresh_from_db()
    assert (run.token, run.live) == (token, before)
    assert not Metrics.objects.filter(token=token).exists()
    records.close()


def test_models_name_the_columns_of_the_partitioned_tables() -> None:
    for model in (Metrics, SubtaskMetrics):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_name = %s", [model._meta.db_table]
            )
            columns = {name for (name,) in cursor.fetchall()}
        assert columns == {field.column for field in model._meta.concrete_fields}
