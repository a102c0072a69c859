"""Queries of the history: numbers of a run over time, as columns on an even grid."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import msgspec
from django.conf import settings
from django.db import connection
from django.db.models import F, Func, IntegerField, JSONField, Q, Subquery, TextField, Value
from django.db.models.functions import Cast

from console.accounts.refusals import InvalidField
from console.jobs.models import Attempt, Run
from console.metrics.models import FINEST_STEP_S, WHOLE_RUN, Metrics, RollUp, SubtaskMetrics
from console.metrics.reads import MAX_AGE, RATE_WINDOW, Read, records_since
from console.metrics.rollup import AGGREGATES, STEPS_S

MAX_POINTS: Final = 500  #: of an operator
MAX_VALUES: Final = 3_000  #: points of all operators together
MAX_SUBTASK_VALUES: Final = 20_000
SUBTASK_HISTORY: Final = timedelta(hours=1)
_FINEST_STEP: Final = timedelta(seconds=FINEST_STEP_S)
_NEWEST: Final = timedelta(seconds=15)  #: all intervals since then are shown
_INTERVAL_NUMBER: Final = f"floor(extract(epoch FROM %(expressions)s) / {FINEST_STEP_S})::bigint"
#: Lengths of intervals that an answer may have; each is a multiple of the step of the rows that it is made from.
RESOLUTIONS_S: Final = (
    5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 604_800,
)  # fmt: skip

Columns = dict[str, list[Any]]


def _per_second(column: str) -> str:
    return f"(sum({column}) * 1000.0 / sum(span_ms))::float8"


_LEVELS: Final = (
    "busy", "backpressured", "skew", "watermark", "processing_lag_ms", "event_lag_ms", "in_flight_bytes", "state_bytes",
    "start_delay_ms", "pre_barrier_ms", "alignment_ms", "sync_ms", "async_ms",
)  # fmt: skip
_OF_OPERATORS: Final[Mapping[str, str]] = {
    **{f"{name}_per_s": _per_second(name) for name in ("records_in", "records_out", "bytes_in", "bytes_out")},
    **{name: AGGREGATES[name] for name in _LEVELS},
}
_OF_RUN: Final[Mapping[str, str]] = {
    **{name: AGGREGATES[name] for name in ("checkpoints", "checkpoints_failed", "checkpoint_ms", "commit_ms")},
    "checkpoint_bytes": "sum(checkpoint_bytes)::bigint",
    "cpu_cores": "(sum(cpu_ms)::float8 / sum(span_ms))",
    "memory_bytes": AGGREGATES["memory_bytes"],
}
_OF_ALL: Final[Mapping[str, str]] = {**_OF_OPERATORS, **_OF_RUN}
_LOAD: Final[Mapping[str, str]] = {name: AGGREGATES[name] for name in ("busy", "backpressured")}
_ALL_NUMBERS: Final = (*_OF_ALL, "idle")
OPERATOR_NUMBERS: Final = (*_OF_OPERATORS, "idle")
RUN_NUMBERS: Final = (*OPERATOR_NUMBERS, *_OF_RUN, "restarts")
SUBTASK_NUMBERS: Final = ("records_in", "records_out", "busy", "backpressured", "watermark", "in_flight_bytes")


class RollUpProgress:
    """By step, the time until which rows are rolled up; read when a query first needs rows of a longer step."""

    @cached_property
    def until(self) -> Mapping[int, datetime]:
        return dict(RollUp.objects.values_list("step_s", "until"))


@dataclass(frozen=True, slots=True)
class Grid:
    """Intervals of `step_s` seconds from `begin` up to `end`."""

    begin: datetime
    end: datetime
    step_s: int

    @property
    def size(self) -> int:
        return int((self.end - self.begin).total_seconds()) // self.step_s

    def index(self, at: datetime) -> int:
        return int((at - self.begin).total_seconds()) // self.step_s


@dataclass(frozen=True, slots=True)
class History:
    """Numbers of a run on a grid, a list per number with an entry per interval; None: there are no numbers."""

    grid: Grid
    run: Columns | None
    operators: Mapping[str, Columns]


@dataclass(frozen=True, slots=True)
class SubtaskHistory:
    """Numbers of an operator's subtasks: a list per number, with a list per interval, with an entry per subtask."""

    at: Sequence[datetime]
    index: Sequence[Sequence[int]]
    numbers: Mapping[str, Sequence[Sequence[Any]]]

    @property
    def until(self) -> datetime:
        """The end of the newest interval, to which its levels such as watermarks belong."""
        return self.at[-1] + _FINEST_STEP


def choose_grid(begin: datetime, end: datetime, wanted_s: int, series: int, now: datetime) -> Grid:
    """The finest grid that has at least `wanted_s` seconds per interval, whose numbers are kept, and that is not too
    large for `series` operators.

    Raises:
        InvalidField: the time between `begin` and `end` is not positive, or too long.
    """
    if begin >= end:
        raise InvalidField("from", "must be before `to`")
    most = max(1, min(MAX_POINTS, MAX_VALUES // max(series, 1)))
    retentions = {
        5: timedelta(hours=settings.WEIR_METRICS_5S_HOURS),
        60: timedelta(days=settings.WEIR_METRICS_1M_DAYS),
    }
    for step_s in RESOLUTIONS_S:
        grid = Grid(_floor(begin, step_s), _floor(end + timedelta(seconds=step_s, microseconds=-1), step_s), step_s)
        retention = retentions.get(_source_step(step_s))
        if step_s >= wanted_s and grid.size <= most and (retention is None or begin >= now - retention):
            return grid
    raise InvalidField("from", f"the time until `to` is too long: at most {most} intervals of {RESOLUTIONS_S[-1]} s")


def history(run: Run, grid: Grid, operator: str | None = None) -> History:
    """The numbers of `operator`, or by default of the run as a whole and of each operator. Three queries."""
    by_operator = _read([run.pk], grid, operator)
    totals = by_operator.pop(WHOLE_RUN, None)
    if operator is not None:
        return History(grid, None, {operator: by_operator.get(operator) or _empty(OPERATOR_NUMBERS, grid)})
    totals = totals or _empty(_ALL_NUMBERS, grid)
    operators = {uid: {name: columns[name] for name in OPERATOR_NUMBERS} for uid, columns in by_operator.items()}
    return History(grid, totals | {"restarts": _restarts(run, grid)}, operators)


def plot_history(runs: Sequence[int], lines: Grid, cells: Grid | None) -> tuple[Columns, Mapping[str, Columns]]:
    """The numbers of a job over its `runs`, which do not overlap: as a whole on the grid `lines`; and the load by
    operator (`busy`, `backpressured` and `idle`) on the grid `cells`, or no load. Two queries at most.

    A query has rows of different columns, hence JSON: an array per operator, with an array per interval.
    """
    queries = [(lines, WHOLE_RUN, _OF_ALL), *([(cells, None, _LOAD)] if cells else [])]
    progress, parts, values = RollUpProgress(), list[str](), list[Any]()
    for grid, operator, numbers in queries:
        query, arguments = _query(runs, grid, operator, numbers, progress)
        entry = ", ".join(("place", *numbers))
        parts.append(
            f"SELECT {len(parts)}, operator, json_agg(json_build_array({entry}) ORDER BY place)::text"  # noqa: S608
            f" FROM ({query}) AS rows GROUP BY operator"
        )
        values += arguments
    columns: tuple[dict[str, Columns], dict[str, Columns]] = ({}, {})
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), values)
        for part, uid, entries in cursor.fetchall():
            grid, _, numbers = queries[part]
            columns[part][uid] = _columns(msgspec.json.decode(entries), grid, tuple(numbers))
    totals, load = columns
    load.pop(WHOLE_RUN, None)
    return totals.get(WHOLE_RUN) or _empty(_ALL_NUMBERS, lines), load


def load_history(run: Run, grid: Grid) -> Mapping[str, Columns]:
    """`busy`, `backpressured` and `idle` by operator. Two queries at most."""
    by_operator = _read([run.pk], grid, None, _LOAD)
    return {uid: columns for uid, columns in by_operator.items() if uid != WHOLE_RUN}


def mean_load(run: Run, begin: datetime, end: datetime, now: datetime) -> dict[str, tuple[float, float]]:
    """Shares of time (busy, backpressured) of each operator from `begin` to `end`. Two queries.

    Empty if only rows of more than a minute are kept, which would attribute the load of other times.
    """
    grid = choose_grid(begin, end + timedelta(seconds=FINEST_STEP_S), FINEST_STEP_S, 1, now)
    if _source_step(grid.step_s) > STEPS_S[1]:
        return {}
    load = load_history(run, grid)
    return {uid: (_mean(columns["busy"]), _mean(columns["backpressured"])) for uid, columns in load.items()}


def in_flight_bytes(run: Run, at: datetime, now: datetime) -> dict[str, int]:
    """Bytes in flight of each operator around `at`, the maximum of an interval. Two queries.

    Empty if only rows of more than a minute are kept, which would show the maximum of other times.
    """
    grid = choose_grid(at, at + timedelta(seconds=FINEST_STEP_S), FINEST_STEP_S, 1, now)
    if _source_step(grid.step_s) > STEPS_S[1]:
        return {}
    by_operator = _read(
        [run.pk], grid, None, {name: AGGREGATES[name] for name in ("busy", "backpressured", "in_flight_bytes")}
    )
    sizes = {
        uid: [value for value in columns["in_flight_bytes"] if value is not None]
        for uid, columns in by_operator.items()
    }
    return {uid: max(values) for uid, values in sizes.items() if uid != WHOLE_RUN and values}


#: Begin of the newest attempt of some runs, or of its flow once the times of its launch are recorded.
_FLOWING_SINCE: Final = """
SELECT coalesce(to_timestamp((launch->>'deployed')::float / 1000), started_at)
FROM weir_attempt WHERE run_id = ANY(%s) ORDER BY token DESC LIMIT 1
"""


def records_read(runs: Sequence[int], begin: datetime, now: datetime, *, is_flowing: bool) -> int | None:
    """Records that the sources of `runs` have read since `begin`, by `records_since`. Two queries.

    `is_flowing`: records of the newest run flow. None: there are no numbers of this time.
    """
    grid = choose_grid(min(begin, now - RATE_WINDOW - MAX_AGE), now + _FINEST_STEP, FINEST_STEP_S, 1, now)
    numbers = {"records_in": "sum(records_in)::bigint", "until": "max(at + step_s * interval '1 s')"}
    query, values = _query(runs, grid, WHOLE_RUN, numbers, RollUpProgress())
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT rows.*, ({_FLOWING_SINCE}) FROM ({query}) AS rows", [list(runs), *values])  # noqa: S608
        rows: list[tuple[str, int, int, datetime, datetime | None]] = cursor.fetchall()
    if not rows:
        return None
    reads = [_read_interval(grid, place, records) for _, place, records, *_ in rows]
    *_, end, flowing_since = rows[-1]
    reads[-1] = reads[-1]._replace(end=end)  # the newest interval of a longer grid is not complete
    return records_since(begin, reads, now if is_flowing else None, flowing_since)


def _read_interval(grid: Grid, place: int, records: int) -> Read:
    begin = grid.begin + timedelta(seconds=place * grid.step_s)
    return Read(begin, begin + timedelta(seconds=grid.step_s), records)


def newest_in_flight_bytes(run: Run) -> int | None:
    """Bytes in flight of the whole run in its newest interval; None if it is not known."""
    rows = Metrics.objects.filter(step_s=FINEST_STEP_S, run_id=run.pk, operator=WHOLE_RUN).order_by("-at")
    return rows.values_list("in_flight_bytes", flat=True).first()


def _mean(values: Sequence[float | None]) -> float:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else 0.0


def subtask_history(run: Run, operator: str, now: datetime, intervals: int | None = None) -> SubtaskHistory:
    """The numbers of the operator's subtasks in the last hour, oldest first, at most `MAX_SUBTASK_VALUES`. A query.

    Of many subtasks it has every n-th interval, and the newest. `intervals`: only that number of the newest.
    """
    most = intervals or max(1, MAX_SUBTASK_VALUES // (len(SUBTASK_NUMBERS) * max(run.parallelism, 1)))
    numbers_of = Func(F("operators"), Value(operator, TextField()), function="jsonb_extract_path")
    places = max(1, most - _NEWEST // _FINEST_STEP)
    every = 1 if intervals else -(-(SUBTASK_HISTORY // _FINEST_STEP) // places)
    samples = SubtaskMetrics.objects.filter(run_id=run.pk, at__gte=now - SUBTASK_HISTORY)
    if every > 1:
        turn = Func(F("at"), template=f"mod({_INTERVAL_NUMBER}, {every})", output_field=IntegerField())
        samples = samples.alias(turn=turn).filter(Q(turn=0) | Q(at__gte=now - _NEWEST))
    newest = samples.annotate(numbers=Cast(numbers_of, JSONField())).exclude(numbers=None).order_by("-at", "-token")
    rows = list(newest.values_list("at", "numbers")[:most])[::-1]
    return SubtaskHistory(
        [at for at, _ in rows],
        [numbers["index"] for _, numbers in rows],
        {name: [numbers[name] for _, numbers in rows] for name in SUBTASK_NUMBERS},
    )


def newest_interval(run: Run) -> tuple[datetime, int] | None:
    """Begin and attempt of the newest interval with numbers of subtasks."""
    newest = SubtaskMetrics.objects.filter(run_id=run.pk).order_by("-at", "-token")
    return newest.values_list("at", "token").first()


def _read(
    runs: Sequence[int], grid: Grid, operator: str | None, numbers: Mapping[str, str] = _OF_ALL
) -> dict[str, Columns]:
    """Columns by operator; `numbers` are names and their SQL."""
    query, values = _query(runs, grid, operator, numbers, RollUpProgress())
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        rows = cursor.fetchall()
    return {
        uid: _columns([row[1:] for row in group], grid, tuple(numbers)) for uid, group in groupby(rows, itemgetter(0))
    }


def _query(
    runs: Sequence[int], grid: Grid, operator: str | None, numbers: Mapping[str, str], progress: RollUpProgress
) -> tuple[str, list[Any]]:
    """Rows of the source step as far as they are rolled up, then finer rows. All names are of this module."""
    parts, values, begin = [], [], grid.begin
    for step_s in reversed([step_s for step_s in STEPS_S if step_s <= _source_step(grid.step_s)]):
        end = grid.end if step_s == STEPS_S[0] else min(grid.end, progress.until.get(step_s, grid.begin))
        if begin < end:
            only = "" if operator is None else " AND operator = %s"
            where = f"step_s = {step_s} AND run_id = ANY(%s) AND at >= %s AND at < %s{only}"
            parts.append(f"SELECT * FROM weir_metrics WHERE {where}")  # noqa: S608
            values += [list(runs), begin, end] if operator is None else [list(runs), begin, end, operator]
            begin = end
    columns = ", ".join(f"{sql} AS {name}" for name, sql in numbers.items())
    query = (
        f"SELECT operator, floor((date_part('epoch', at) - %s) / {grid.step_s})::int AS place, {columns}"  # noqa: S608
        f" FROM ({' UNION ALL '.join(parts)}) AS rows GROUP BY operator, place ORDER BY operator, place"
    )
    return query, [int(grid.begin.timestamp()), *values]


def _columns(rows: Sequence[Sequence[Any]], grid: Grid, names: Sequence[str]) -> Columns:
    """Rows of an operator (the index of the interval, numbers) as a list per number."""
    places = [row[0] for row in rows]
    columns = zip(*(row[1:] for row in rows), strict=True)
    numbers = {name: _spread(places, column, grid.size) for name, column in zip(names, columns, strict=True)}
    numbers["idle"] = [
        None if busy is None or blocked is None else max(0.0, 1.0 - busy - blocked)
        for busy, blocked in zip(numbers["busy"], numbers["backpressured"], strict=True)
    ]
    return numbers


def _spread(places: Sequence[int], column: Iterable[Any], size: int) -> list[Any]:
    spread = [None] * size
    for place, value in zip(places, column, strict=True):
        spread[place] = value
    return spread


def _empty(names: Iterable[str], grid: Grid) -> Columns:
    return {name: [None] * grid.size for name in names}


def _restarts(run: Run, grid: Grid) -> list[int]:
    """Attempts that began in each interval, without the first of the run. Rows of attempts are never deleted."""
    counts = [0] * grid.size
    first = Attempt.objects.filter(run=run).order_by("token").values("pk")[:1]
    began = Attempt.objects.filter(run=run, started_at__gte=grid.begin, started_at__lt=grid.end).exclude(
        pk=Subquery(first)
    )
    for at in began.values_list("started_at", flat=True):
        counts[grid.index(at)] += 1
    return counts


def _source_step(step_s: int) -> int:
    """The step of the rows that intervals of `step_s` seconds are made from."""
    return max(step for step in STEPS_S if step <= step_s)


def _floor(at: datetime, step_s: int) -> datetime:
    return datetime.fromtimestamp(int(at.timestamp()) // step_s * step_s, UTC)
