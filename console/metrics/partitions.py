"""Partitions by time of the tables of metrics: made ahead, dropped when their retention is over.

A row without a partition goes to the default partition of its table, so that no insert of a job master fails. When the
partition is made later, such rows move into it. Each change waits at most `LOCK_TIMEOUT` for its locks, because inserts
queue up behind it. The next pass tries again.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from django.conf import settings
from django.db import OperationalError, connection, transaction
from django.db.backends.utils import CursorWrapper
from psycopg import sql

LOCK_TIMEOUT: Final = "1s"
_START: Final = "%Y%m%dt%H%M"
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedTable:
    """A table that is partitioned by ranges of `at`. `step_s` is None for the table of subtasks."""

    name: str
    step_s: int | None
    width: timedelta
    ahead: timedelta  #: how long inserts find their partition if housekeeping stops
    retention: timedelta

    def start_of(self, at: datetime) -> datetime:
        """Start of the partition that contains `at`."""
        width_s = int(self.width.total_seconds())
        return datetime.fromtimestamp(int(at.timestamp()) // width_s * width_s, UTC)

    def partition(self, start: datetime) -> str:
        return f"{self.name}_{start.strftime(_START)}"

    @property
    def rest(self) -> str:
        return f"{self.name}_rest"


def tables() -> tuple[PartitionedTable, ...]:
    """The tables, with the retention of the settings."""
    hour, day = timedelta(hours=1), timedelta(days=1)
    return (
        PartitionedTable(
            name="weir_subtask_metrics", step_s=None, width=hour / 2, ahead=4 * hour, retention=hour
        ),
        PartitionedTable(
            name="weir_metrics_5s", step_s=5, width=6 * hour, ahead=2 * day,
            retention=hour * settings.WEIR_METRICS_5S_HOURS,
        ),
        PartitionedTable(
            name="weir_metrics_1m", step_s=60, width=day, ahead=3 * day, retention=day * settings.WEIR_METRICS_1M_DAYS
        ),
        PartitionedTable(
            name="weir_metrics_15m", step_s=900, width=30 * day, ahead=30 * day,
            retention=day * settings.WEIR_METRICS_15M_DAYS,
        ),
    )  # fmt: skip


def create_partitions(now: datetime) -> int:
    """Makes the partitions from `now` on, and those of rows in default partitions. Returns their number."""
    count = 0
    for table in tables():
        existing = dict(_partitions(table))
        starts = set(_starts_ahead(table, now)) | {start for start in _starts_of_rest(table) if start < now}
        missing = [start for start in starts - existing.keys() if start + table.width > now - table.retention]
        count += _apply(_create, table, sorted(missing, reverse=True))  # inserts need the newest
    return count


def drop_partitions(now: datetime, rolled_until: dict[int, datetime | None]) -> int:
    """Drops the partitions whose retention is over, and removes such rows from default partitions.

    Args:
        rolled_until: by step, the time until which the rows are rolled up to the next step. Later rows stay.

    Returns:
        The number of dropped partitions.
    """
    count = 0
    for table in tables():
        expired = now - table.retention
        if table.step_s in rolled_until:
            until = rolled_until[table.step_s]
            expired = table.start_of(now) - table.width if until is None else min(expired, until)
        count += _apply(_drop, table, [start for start, _ in _partitions(table) if start + table.width <= expired])
        with connection.cursor() as cursor:
            cursor.execute(sql.SQL("DELETE FROM {} WHERE at < %s").format(sql.Identifier(table.rest)), [expired])
    return count


def _starts_ahead(table: PartitionedTable, now: datetime) -> Iterator[datetime]:
    start = table.start_of(now)
    while start <= now + table.ahead:
        yield start
        start += table.width


def _starts_of_rest(table: PartitionedTable) -> set[datetime]:
    query = sql.SQL("SELECT DISTINCT date_bin(%s * interval '1 second', at, 'epoch') FROM {}").format(
        sql.Identifier(table.rest)
    )
    with connection.cursor() as cursor:
        cursor.execute(query, [table.width.total_seconds()])
        return {start for (start,) in cursor.fetchall()}


def _partitions(table: PartitionedTable) -> Iterator[tuple[datetime, str]]:
    """Start and name of each partition, without the default partition."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass", [table.name])
        for (name,) in cursor.fetchall():
            if match := re.fullmatch(re.escape(table.name) + r"_(\d{8}t\d{4})", name):
                yield datetime.strptime(match[1], _START).replace(tzinfo=UTC), name


def _apply(change: "_Change", table: PartitionedTable, starts: Iterable[datetime]) -> int:
    """Changes the partitions with these starts, each in a transaction, until a lock is not available in time."""
    count = 0
    for start in starts:
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                change(cursor, table, start)
        except OperationalError as error:
            log.warning("partition not changed yet", partition=table.partition(start), error=str(error))
            break
        count += 1
    return count


def _create(cursor: CursorWrapper, table: PartitionedTable, start: datetime) -> None:
    """Attaches a table that has the rows of the default partition already.

    CREATE TABLE … PARTITION OF would lock the parent against inserts.
    """
    bounds = {"start": sql.Literal(start), "end": sql.Literal(start + table.width)}
    names = {
        "parent": sql.Identifier(table.name),
        "rest": sql.Identifier(table.rest),
        "partition": sql.Identifier(table.partition(start)),
    }
    for statement in (
        "LOCK TABLE {rest} IN ACCESS EXCLUSIVE MODE",
        "CREATE TABLE {partition} (LIKE {parent} INCLUDING ALL)",
        "INSERT INTO {partition} SELECT * FROM {rest} WHERE at >= {start} AND at < {end}",
        "DELETE FROM {rest} WHERE at >= {start} AND at < {end}",
        "ALTER TABLE {parent} ATTACH PARTITION {partition} FOR VALUES FROM ({start}) TO ({end})",
    ):
        cursor.execute(sql.SQL(statement).format(**names, **bounds))


def _drop(cursor: CursorWrapper, table: PartitionedTable, start: datetime) -> None:
    cursor.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(table.partition(start))))


_Change = Callable[[CursorWrapper, PartitionedTable, datetime], None]
