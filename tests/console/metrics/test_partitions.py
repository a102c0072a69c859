"""Partitions appear ahead of time, take over early rows, and go with their retention; never before the roll-up."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from console.metrics import housekeeping, partitions
from console.metrics.models import Metrics, RollUp, SubtaskMetrics
from tests.contracts.test_records import url

pytestmark = pytest.mark.django_db(transaction=True)
NOW = datetime(2026, 11, 23, 10, 7, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture(autouse=True)
def _no_partitions_after() -> Iterator[None]:
    """The tables are of the session: a later test finds them as the migration made them."""
    yield
    remove_partitions()


def remove_partitions() -> None:
    for table in partitions.tables():
        for name in partitions_of(table.name):
            if not name.endswith("_rest"):
                with connection.cursor() as cursor:
                    cursor.execute(f"DROP TABLE {name}")


def partitions_of(table: str) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass", [table])
        return {name for (name,) in cursor.fetchall()}


def add(at: datetime, step_s: int = 5, records: int = 3) -> None:
    numbers = {"records_in": records, "records_out": records, "bytes_in": 0, "bytes_out": 0, "span_ms": 5_000}
    Metrics.objects.create(step_s=step_s, run_id=1, at=at, operator="", token=1, **numbers)


def home_of(at: datetime, step_s: int = 5) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM weir_metrics WHERE at = %s AND step_s = %s", [at, step_s])
        return str(cursor.fetchone()[0])


def test_partitions_are_made_ahead() -> None:
    housekeeping.maintain(NOW)
    assert "weir_metrics_5s_20261123t0600" in partitions_of("weir_metrics_5s")
    assert "weir_metrics_5s_20261125t0600" in partitions_of("weir_metrics_5s")
    assert "weir_metrics_1m_20261126t0000" in partitions_of("weir_metrics_1m")
    assert len(partitions_of("weir_metrics_15m")) == 3
    assert "weir_subtask_metrics_20261123t1400" in partitions_of("weir_subtask_metrics")
    for at in (NOW, NOW + 2 * DAY):
        add(at)
        assert home_of(at) == f"weir_metrics_5s_{at:%Y%m%d}t0600"
    before = partitions_of("weir_metrics_5s")
    housekeeping.maintain(NOW)
    assert partitions_of("weir_metrics_5s") == before


def test_rows_that_came_before_their_partition_move_into_it() -> None:
    """Housekeeping was away for hours: no insert failed, and no row is lost."""
    early = [NOW - 13 * HOUR, NOW - 5 * HOUR, NOW]
    for number, at in enumerate(early):
        add(at, records=number)
        assert home_of(at) == "weir_metrics_5s_rest"
    housekeeping.maintain(NOW)
    homes = [home_of(at) for at in early]
    assert homes == [f"weir_metrics_5s_{start}" for start in ("20261122t1800", "20261123t0000", "20261123t0600")]
    assert [row.records_in for row in Metrics.objects.filter(step_s=5).order_by("at")] == [0, 1, 2]


def test_expired_partitions_are_dropped_with_their_rows(settings: Settings) -> None:
    settings.WEIR_METRICS_5S_HOURS, settings.WEIR_METRICS_1M_DAYS = 12, 2
    add(NOW)
    SubtaskMetrics.objects.create(run_id=1, at=NOW, token=1, operators={})
    housekeeping.maintain(NOW)
    old = "weir_metrics_5s_20261123t0600"
    housekeeping.maintain(NOW + 13 * HOUR)
    assert old in partitions_of("weir_metrics_5s"), "its last rows are not old enough"
    assert not SubtaskMetrics.objects.exists()
    housekeeping.maintain(NOW + 14 * HOUR)
    assert old not in partitions_of("weir_metrics_5s")
    assert Metrics.objects.filter(step_s=60).count() == 1, "rolled up before"
    housekeeping.maintain(NOW + 4 * DAY)
    assert [row.step_s for row in Metrics.objects.all()] == [900]


def test_finer_rows_stay_until_they_are_rolled_up() -> None:
    """A pass whose roll-up is behind, as after a pause of housekeeping, drops no row of it."""
    add(NOW)
    partitions.create_partitions(NOW)
    RollUp.objects.create(step_s=60, until=NOW)
    partitions.drop_partitions(NOW + 90 * DAY, {5: NOW, 60: None})
    assert Metrics.objects.get().records_in == 3
    partitions.drop_partitions(NOW + 90 * DAY, {5: NOW + 6 * HOUR, 60: None})
    assert not Metrics.objects.exists()


def test_a_partition_waits_for_no_long_reader() -> None:
    """A lock that is not to be had leaves the change to the next pass: inserts would queue up behind it."""
    add(NOW)
    with psycopg.connect(url()) as other:
        other.execute("SELECT count(*) FROM weir_metrics_5s_rest")
        assert partitions.create_partitions(NOW) > 0, "the other tables have theirs"
        assert partitions_of("weir_metrics_5s") == {"weir_metrics_5s_rest"}
    housekeeping.maintain(NOW)
    assert home_of(NOW) == "weir_metrics_5s_20261123t0600"


def test_passes_exclude_each_other() -> None:
    with psycopg.connect(url()) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [housekeeping._LOCK])
        housekeeping.maintain(NOW)
        assert partitions_of("weir_metrics_5s") == {"weir_metrics_5s_rest"}
        other.execute("SELECT pg_advisory_unlock(%s)", [housekeeping._LOCK])
    housekeeping.maintain(NOW)
    assert len(partitions_of("weir_metrics_5s")) > 1
