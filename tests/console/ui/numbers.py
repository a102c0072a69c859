"""A history of numbers as job masters and the roll-up write it: the story of a run in rows."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from statistics import fmean
from typing import Any

from django.db import connection
from django.utils import timezone

from console.accounts.models import User
from console.checkpoints.models import Checkpoint
from console.jobs.models import Attempt, Job, Run
from console.metrics.models import WHOLE_RUN, Metrics, RollUp, SubtaskMetrics
from tests.console import graphs
from tests.console.ui import rows
from tests.console.ui.story import (
    DEPLOYMENT,
    LASTED,
    OPEN_SESSIONS,
    RATE,
    RECORD_BYTES,
    SESSIONS_PER_S,
    SLOWER,
    Story,
    Taken,
    story_of,
    story_of_recovered_run,
    story_of_slow_run,
)

FINE, COARSE = 5, 60
NAMES = (
    """
orders, payments, shipments, parse orders, parse payments, parse shipments, valid orders, fraud score, customers,
enrich orders, currency rates, to euro, orders and payments, late payments, sessions, basket features, model score,
score alerts, sums by carrier, sums by country, sums by product, top 100, inventory, stock levels, reorder rules,
delays, notify, orders out, alerts out, sums out
""".replace("\n", " ")
    .strip()
    .split(", ")
)
UIDS = tuple(name.replace(" ", "-") for name in NAMES)
SLOW = 15  #: index of the operator that becomes slow
_OF_ENDED_SESSIONS = (("window", "rate_out"), ("parquet", "rate_in"))


def wide_graph() -> dict[str, Any]:
    """30 operators: three sources, three sinks, joins between."""
    roles = {0: "source", 1: "source", 2: "source", 8: "source", 10: "source", 27: "sink", 28: "sink", 29: "sink"}
    operators = [graphs.operator(UIDS[at], name, roles.get(at, "operator"), 4) for at, name in enumerate(NAMES)]
    ends = [(0, 3), (1, 4), (2, 5), (3, 6), (4, 7), (6, 9), (8, 9), (9, 11), (10, 11), (11, 12), (7, 12), (12, 13),
            (12, 14), (14, 15), (15, 16), (16, 17), (17, 28), (5, 18), (12, 19), (12, 20), (20, 21), (5, 22), (22, 23),
            (23, 24), (18, 25), (25, 26), (24, 27), (26, 28), (19, 29), (21, 29), (13, 28)]  # fmt: skip
    uids = [operator["uid"] for operator in operators]
    edges = [graphs.edge(uids[a], uids[b], 0, "hash", "id") for a, b in ends]
    return {"code": graphs.CODE, "max_parallelism": 128, "parallelism": 4, "operators": operators, "edges": edges}


def record(
    run: Run, story: Story | None = None, *, hours: float = 6, fine_minutes: float = 20, weight: float = 1.2
) -> None:
    """Rows of 1 min over `hours` of the run, and of 5 s over the newest `fine_minutes`, also by subtask.

    `weight`: records of the last subtask of the window, compared with those of each other subtask.
    """
    story, began = story or story_of(run), run.started_at
    assert began is not None
    checkpoints, intervals = list(story.checkpoints()), []
    for step_s, length in ((COARSE, timedelta(hours=hours)), (FINE, timedelta(minutes=fine_minutes))):
        step = timedelta(seconds=step_s)
        end = datetime.fromtimestamp(int(story.present.timestamp()) // step_s * step_s, UTC)
        count = min(length, end - began) // step
        for at in (end - n * step for n in range(count, 0, -1)):
            intervals += _interval(
                run,
                story,
                at,
                step_s,
                [checkpoint for checkpoint in checkpoints if at <= _ended(checkpoint) < at + step],
            )
    intervals += _interval(run, story, began + DEPLOYMENT, FINE, [])[-1:]  # the slots begin to work
    columns = [field.attname for field in Metrics._meta.concrete_fields]
    with connection.cursor() as cursor, cursor.copy(f"COPY weir_metrics ({', '.join(columns)}) FROM STDIN") as copy:
        for row in intervals:
            copy.write_row([getattr(row, column) for column in columns])
    RollUp.objects.update_or_create(step_s=COARSE, defaults={"until": story.present - timedelta(seconds=75)})
    if run.state == "running":
        _subtasks(run, [row for row in intervals if row.step_s == FINE and row.operator != WHOLE_RUN], weight)


def _ended(checkpoint: Taken) -> datetime:
    return checkpoint.at + timedelta(milliseconds=checkpoint.took_ms or 0)


def _interval(run: Run, story: Story, at: datetime, step_s: int, checkpoints: list[Taken]) -> list[Metrics]:
    """The rows of an interval, means over the time that the run was up in it; none if it was down."""
    moments = [at + timedelta(seconds=s) for s in range(0, step_s, FINE)]
    up = [moment for moment in moments if not story.is_down(moment)]
    if not up:
        return []
    sick, full = fmean(map(story.sickness, up)), fmean(map(story.rate, up)) / RATE
    surge, ends = fmean(map(story.catches_up, up)), float(rows.grown(run, at) == 1)
    reached = [*up, *(end for moment in up if not story.is_down(end := moment + timedelta(seconds=FINE)))]
    levels = _levels(run, story, reached)
    operators = [row for row in _operators(run) if _calm(run, row["uid"])["state"] == "running"]
    slow = min(SLOW, len(operators) // 2)
    metrics = []
    for index, operator in enumerate(operators):
        calm = _calm(run, operator["uid"])
        wave = 1 + 0.1 * math.sin(at.timestamp() / 7 + index)
        busy, blocked = min(calm["busy"] * wave * max(full, 1.0), 1.0), calm["backpressured"] * wave
        if index == slow:
            busy += (0.99 - busy) * sick
        elif index < slow:
            busy *= 1 - sick * 0.8
            blocked += (0.93 - blocked) * sick + (0.3 - blocked) * surge
        else:
            busy *= 1 - sick * 0.7
        rates = tuple(
            calm[rate] * full * (ends if (operator["uid"], rate) in _OF_ENDED_SESSIONS else 1)
            for rate in ("rate_in", "rate_out")
        )
        queued = max(map(story.queued, reached)) * RECORD_BYTES if index == slow else 0
        sizes = {**levels, "in_flight_bytes": round(_calm_queue_bytes(run, operator["uid"]) * full + queued)}
        metrics.append(_row(run, story, at, step_s, operator["uid"], rates, busy, blocked, sizes))
    roles = {row["uid"]: row["role"] for row in operators}
    read = sum(row.records_out or 0 for row in metrics if roles[row.operator] == "source")
    written = sum(row.records_in or 0 for row in metrics if roles[row.operator] == "sink")
    totals = _row(
        run, story, at, step_s, WHOLE_RUN, (read / step_s, written / step_s),
        max(m.busy or 0 for m in metrics), max(m.backpressured or 0 for m in metrics),
        {**levels, "in_flight_bytes": sum(m.in_flight_bytes or 0 for m in metrics)},
    )  # fmt: skip
    totals.state_bytes = round(story.state_bytes(at) * rows.grown(run, at))
    is_in_story = at >= story.slow_at  # the story has no checkpoints of the hours before
    lasted = [row for row in checkpoints if row.took_ms is not None and not row.reason] or (
        [] if is_in_story else [story.checkpoint(at)]
    )
    totals.checkpoints, totals.checkpoints_failed = len(lasted), sum(row.reason == "expired" for row in checkpoints)
    if lasted:
        longest = max(lasted, key=lambda row: row.took_ms or 0)
        took_ms, phases = longest.took_ms or 0, rows.operators_of(longest)
        acknowledged_ms = max(at for lanes in rows.acknowledgements(of=phases).values() for at in lanes["at_ms"])
        totals.checkpoint_ms, totals.pre_barrier_ms = took_ms, 0.0
        totals.commit_ms = max(0.0, took_ms - acknowledged_ms)
        of_subtasks = [{name: ms for name, ms in row["slowest"].items() if name != "subtask"}
                       for row in phases if row["slowest"]]  # fmt: skip
        for phase, ms in max(of_subtasks, key=lambda row: sum(row.values())).items():
            setattr(totals, phase, ms)
    return [*metrics, totals]


def _levels(run: Run, story: Story, moments: list[datetime]) -> dict[str, int]:
    """The highest levels at some moments, as job masters write them and the roll-up keeps them."""
    return {
        "watermark": max(_watermark(story, moment) for moment in moments),
        "processing_lag_ms": max(map(story.lag_ms, moments)),
        "event_lag_ms": max(map(story.queue_ms, moments)),
    }


def _watermark(story: Story, at: datetime) -> int:
    """The records are live: their event time is that of the clock."""
    return int(at.timestamp() * 1000) - story.lag_ms(at)


def _calm(run: Run, uid: str) -> dict[str, Any]:
    """What the job master reports of an operator that keeps up."""
    return _full_flow().get(uid) or _reported(run)[uid]


@cache
def _full_flow() -> dict[str, dict[str, Any]]:
    return dict(rows.live()["operators"])


def _calm_queue_bytes(run: Run, uid: str) -> float:
    """The input queues of an operator that keeps up, by the time that a barrier needs to pass them."""
    delays = {row["uid"]: row["max_start_delay_ms"] for row in rows.OPERATORS}
    if uid not in delays or uid not in _full_flow():
        return 0.0
    edges = (run.version.graph or {})["edges"]
    before_ms = max((delays.get(edge["source"], 0.0) for edge in edges if edge["target"] == uid), default=delays[uid])
    return float((delays[uid] - before_ms) / 1000 * _full_flow()[uid]["rate_in"] * RECORD_BYTES)


def _row(
    run: Run,
    story: Story,
    at: datetime,
    step_s: int,
    uid: str,
    rates: tuple[float, ...],
    busy: float,
    blocked: float,
    levels: dict[str, int],
) -> Metrics:
    records_in, records_out = (round(rate * step_s) for rate in rates)
    is_first = story.failed_at is not None and at < story.failed_at
    return Metrics(
        step_s=step_s, run_id=run.pk, at=at, operator=uid, token=0 if step_s > FINE else run.token - is_first,
        span_ms=step_s * 1000, records_in=records_in, records_out=records_out, bytes_in=records_in * RECORD_BYTES,
        bytes_out=records_out * RECORD_BYTES, busy=busy, backpressured=blocked, skew=1.1, state_bytes=2**14, **levels,
    )  # fmt: skip


def _subtasks(run: Run, intervals: list[Metrics], weight: float) -> None:
    """The subtasks of the rows by operator. `weight`: as in `record`."""
    indexes = list(range(run.parallelism))
    shares = {"window": [weight if index == indexes[-1] else 1 for index in indexes]}
    moments: dict[datetime, dict[str, Any]] = {}
    for row in intervals:
        columns = _split(row, shares.get(row.operator, [1] * len(indexes)))
        moments.setdefault(row.at, {"token": row.token, "operators": {}})["operators"][row.operator] = columns
    SubtaskMetrics.objects.bulk_create(SubtaskMetrics(run_id=run.pk, at=at, **fields) for at, fields in moments.items())


def _split(row: Metrics, shares: Sequence[float]) -> dict[str, Any]:
    """The numbers of the subtasks of an operator, which have the `shares` of its records."""
    parts = [share / sum(shares) for share in shares]
    count = len(parts)
    return {
        "index": list(range(count)),
        "records_in": [round((row.records_in or 0) * part) for part in parts],
        "records_out": [round((row.records_out or 0) * part) for part in parts],
        "busy": [min((row.busy or 0) * part * count, 1.0) for part in parts],
        "backpressured": [row.backpressured] * count,
        "watermark": [row.watermark] * count,
        "in_flight_bytes": [round((row.in_flight_bytes or 0) * part) for part in parts],
    }


def backpressure(run: Run, root: str, waiting: tuple[str, ...], now: datetime) -> None:
    """The newest minute of each subtask: `root` is 100 % busy, and the operators `waiting` wait for receivers."""
    for n in range(12):
        operators = {}
        for operator in _operators(run):
            uid = operator["uid"]
            rates = {"rate_in": 0.0, "rate_out": 0.0} | _reported(run).get(uid, {})
            row = Metrics(
                records_in=round(rates["rate_in"] * FINE), records_out=round(rates["rate_out"] * FINE),
                busy=1.0 if uid == root else 0.05, backpressured=0.93 if uid in waiting else 0.0,
                watermark=int(now.timestamp() - (n + 1) * FINE) * 1_000, in_flight_bytes=2**17,
            )  # fmt: skip
            operators[uid] = _split(row, [1, 1])
        at = now - (n + 1) * timedelta(seconds=FINE)
        SubtaskMetrics.objects.create(run_id=run.pk, at=at, token=run.token, operators=operators)


def _reported(run: Run) -> dict[str, dict[str, Any]]:
    return dict((run.live or {}).get("operators", {}))


def _operators(run: Run) -> list[dict[str, Any]]:
    graph = run.version.graph or {}
    return list(graph["operators"])


def run_with_story(name: str, state: str, upto: int | None, **changes: Any) -> Run:
    """A run with its attempts, checkpoints and numbers. `upto`: number of its last checkpoint; None: it has all.

    `changes`: as in `rows.run`.
    """
    run = rows.run(rows.job(name), state, **changes)
    _tell(run, story_of(run), upto)
    return run


def _tell(run: Run, story: Story, upto: int | None) -> None:
    """The attempts, checkpoints and numbers of a run. `upto`: as in `run_with_story`."""
    began, before = run.started_at, run.restore_checkpoint.number if run.restore_checkpoint else 0
    assert began is not None
    number = upto or before + story.last_number(began)
    rows.attempts(run, story)
    rows.history(run, number, story, before + 1)
    if upto is None:
        rows.earlier_checkpoints(run, story)
    if run.live:
        _report(run, story)
        if run.live.get("checkpoint"):
            run.live["checkpoint"]["number"] = number
        run.save(update_fields=["live"])
    record(run, story, fine_minutes=60 if upto is None else 20)


def _report(run: Run, story: Story) -> None:
    """Makes the last report one of this run: its processes, its event time, and its counts since the last restart.

    A session has ended for each that has begun and is not open. A drain ends all of them.
    """
    live, began = run.live, run.started_at
    assert live is not None
    assert began is not None
    application, seat = rows.application(run), rows.seat(run)
    live |= {"spark_application": application, "spark_ui": f"http://host-1:{4040 + seat}"}
    live["slots"] = [
        rows.slot(slot["index"], slot["host"], int(slot["executor"]), application, seat) for slot in live["slots"]
    ]
    is_down = story.is_down(story.present)
    at = story.failed_at - rows.MILLISECOND if is_down and story.failed_at else story.present
    event_time_s = story.event_time_s(began)
    was_empty = run.restore_checkpoint is None and (story.failed_at is None or is_down)
    ended = round(SESSIONS_PER_S * event_time_s) - OPEN_SESSIONS * (was_empty - (run.state == "finished"))
    for uid, calm in rows.live()["operators"].items():
        operator = live["operators"][uid]
        if operator["watermark"] is not None:
            operator["watermark"] = _watermark(story, at)
        for count, rate in (("records_in", "rate_in"), ("records_out", "rate_out")):
            if calm[rate]:
                is_of_ended = (uid, rate) in _OF_ENDED_SESSIONS
                operator[count] = ended if is_of_ended else round(calm[rate] * event_time_s)
    if run.state == "finished":
        live["operators"]["window"]["open_results"] = {}


def slow_run(upto: int | None = 2_131) -> Run:
    """A running job whose join is slow now: the operators before it wait. `upto`: as in `run_with_story`."""
    under_way = {"number": 0, "acknowledged": 4, "subtasks": 10, "kind": "checkpoint"}
    slots = [rows.slot(0, "host-1", 4), rows.slot(1, "host-2", 5)]
    live = rows.live(checkpoint=under_way, restarts=0, slots=slots)
    slow, ended = RATE * SLOWER, SESSIONS_PER_S * SLOWER
    changed: dict[str, dict[str, float]] = {
        "join": {"busy": 1.0, "rate_in": slow, "rate_out": slow},
        "flights": {"busy": 0.05, "backpressured": 0.93, "rate_out": slow},
        "prepared": {"busy": 0.04, "backpressured": 0.91, "rate_in": slow, "rate_out": slow},
        "window": {"busy": 0.07, "rate_in": slow, "rate_out": ended},
        "parquet": {"busy": 0.01, "rate_in": ended},
    }
    operators = {uid: {**operator, **changed.get(uid, {})} for uid, operator in live["operators"].items()}
    began_ago = LASTED if upto else timedelta(minutes=38)
    run = rows.run(rows.job("flights-slow"), began_ago=began_ago, token=9_100, live={**live, "operators": operators})
    story = story_of_slow_run(run)
    _tell(run, story, upto)
    rows.operations_of(run, User.objects.earliest("pk"))
    return run


def recovered_run(upto: int | None = 2_131, days: int = 0) -> Run:
    """A running job that is up to date again, after its join became slow and one of its slots was killed.

    An earlier run of the job, of a version with an interval of an hour, has the checkpoints of the `days` before.
    `upto`: as in `run_with_story`.
    """
    hourly = {"settings": rows.settings(checkpoint_interval_ms=3_600_000)}
    job = rows.job("flights", hourly if days else None)
    under_way = {"number": 0, "acknowledged": 6, "subtasks": 10, "kind": "checkpoint"}
    restored = _earlier_run(job, days) if days else None
    live = rows.live(checkpoint=under_way)
    newest = job.versions.latest("number")
    began_ago = LASTED if upto else LASTED + timedelta(minutes=18)
    run = rows.run(job, began_ago=began_ago, token=9_201, live=live, restore_checkpoint=restored, version=newest)
    _tell(run, story_of_recovered_run(run), upto)
    rows.operations_of(run, User.objects.earliest("pk"))
    return run


def _earlier_run(job: Job, days: int) -> Checkpoint:
    """A run that was stopped four hours ago, with its savepoint. Its state grows from day to day, and some expire."""
    ended, hour = timezone.now() - timedelta(hours=4), timedelta(hours=1)
    began = ended - timedelta(days=days)
    defined = began - timedelta(minutes=5)
    Job.objects.filter(pk=job.pk).update(created_at=defined)
    job.versions.update(created_at=defined)
    run = rows.run(job, "stopped", token=9_191, created_at=began, started_at=began, ended_at=ended, live=None)
    rows.add_version(job, 2, created_at=ended + timedelta(minutes=20))
    Attempt.objects.create(run=run, token=run.token, started_at=began, ended_at=ended, outcome="ended")
    for n in range(days * 24):
        grown, wave = 1 + n / (days * 24), 1 + 0.2 * math.sin(n / 3)
        at = began + n * hour
        figures: dict[str, Any] = {
            "duration_ms": round(180 * grown * wave), "size_bytes": round(6e5 * grown), "discarded_at": at + hour
        }  # fmt: skip
        if n % 50 == 30:
            figures = {"status": "failed", "reason": "expired", "duration_ms": 60_000}
        rows.checkpoint(run, 1 + n, triggered_at=at, is_stored=False, **figures)
    at = ended - timedelta(seconds=2)
    return rows.checkpoint(run, 1 + days * 24, kind="stop", triggered_at=at, duration_ms=1_300)


def wide_run() -> Run:
    """A running job of 30 operators."""
    job: Job = rows.job("orders-scoring", version={"graph": wide_graph(), "parallelism": 4})
    live = rows.live()
    operators = {
        operator["uid"]: {"state": "running", "records_in": 9_120_400, "records_out": 9_120_400, "rate_in": 84_211.0,
                          "rate_out": 84_211.0, "busy": 0.3, "backpressured": 0.1, "watermark": None}
        for operator in wide_graph()["operators"]
    }  # fmt: skip
    return rows.run(job, live={**live, "operators": operators})
