"""A history of numbers as job masters and the roll-up write it, with an episode of backpressure and a restart."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from console.jobs.models import Job, Run
from console.metrics.models import WHOLE_RUN, Metrics, RollUp, SubtaskMetrics
from tests.console.ui import rows

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


def wide_graph() -> dict[str, Any]:
    """30 operators: three sources, three sinks, joins between."""
    roles = {0: "source", 1: "source", 2: "source", 8: "source", 10: "source", 27: "sink", 28: "sink", 29: "sink"}
    operators = [
        {"uid": UIDS[at], "name": name, "role": roles.get(at, "operator"), "parallelism": 4,
         "bounded": False, "guarantee": "exactly-once"}
        for at, name in enumerate(NAMES)
    ]  # fmt: skip
    ends = [(0, 3), (1, 4), (2, 5), (3, 6), (4, 7), (6, 9), (8, 9), (9, 11), (10, 11), (11, 12), (7, 12), (12, 13),
            (12, 14), (14, 15), (15, 16), (16, 17), (17, 28), (5, 18), (12, 19), (12, 20), (20, 21), (5, 22), (22, 23),
            (23, 24), (18, 25), (25, 26), (24, 27), (26, 28), (19, 29), (21, 29), (13, 28)]  # fmt: skip
    uids = [operator["uid"] for operator in operators]
    edges = [
        {"source": uids[a], "target": uids[b], "input": 0, "partitioning": "hash", "keys": ["id"], "build": False}
        for a, b in ends
    ]
    return {"max_parallelism": 128, "parallelism": 4, "operators": operators, "edges": edges}


def record(run: Run, now: datetime, *, hours: float = 6, fine_minutes: float = 20, told: float = 1.0) -> None:
    """Rows of 1 min over `hours`, and of 5 s over the newest `fine_minutes`.

    Between 60 % and 75 % of the time, and of the fine part, an operator is slow: the operators before it wait, lag and
    checkpoints grow. At 75 % an attempt fails and the run restarts.

    Args:
        told: the share of this story that has happened; at 0.74 the operator is slow now.
    """
    uids = [(o["uid"], o["role"]) for o in _operators(run)]
    made = []
    for step_s, length in ((COARSE, timedelta(hours=hours)), (FINE, timedelta(minutes=fine_minutes))):
        end = datetime.fromtimestamp(int(now.timestamp()) // step_s * step_s, UTC)
        count = int(length.total_seconds()) // step_s
        for n in range(count):
            at, part = end - (count - n) * timedelta(seconds=step_s), told * n / count
            if 0.75 <= part < 0.765:
                continue  # the restart
            made += _interval(run, at, step_s, part, n, uids)
    columns = [field.attname for field in Metrics._meta.concrete_fields]
    with connection.cursor() as cursor, cursor.copy(f"COPY weir_metrics ({', '.join(columns)}) FROM STDIN") as copy:
        for row in made:
            copy.write_row([getattr(row, column) for column in columns])
    RollUp.objects.update_or_create(step_s=COARSE, defaults={"until": now - timedelta(seconds=75)})
    _subtasks(run, now)


def _interval(run: Run, at: datetime, step_s: int, part: float, n: int, uids: list[tuple[str, str]]) -> list[Metrics]:
    sick = max(0.0, min((part - 0.6) / 0.05, 1.0)) if part < 0.75 else 0.0
    wave = 1 + 0.18 * math.sin(part * 14) + 0.05 * math.sin(n * 1.7)
    per_s = 84_000 * wave * (1 - 0.75 * sick)
    lag_ms = round(800 + 300 * abs(math.sin(n)) + sick * 95_000 * (part - 0.6) / 0.15)
    slow = min(SLOW, len(uids) // 2)
    found = []
    for index, (uid, role) in enumerate(uids):
        busy = 0.12 + 0.3 * abs(math.sin(index * 2.1)) + 0.06 * math.sin(n * 0.9 + index)
        blocked = 0.0
        if index == slow:
            busy = busy + (0.99 - busy) * sick
        elif index < slow:
            blocked = 0.93 * sick * (0.75 + 0.25 * math.cos(index))
            busy *= 1 - sick * 0.8
        else:
            busy *= 1 - sick * 0.7
        found.append(_row(run, at, step_s, uid, per_s, busy, blocked, lag_ms, role=role))
    whole = _row(
        run,
        at,
        step_s,
        WHOLE_RUN,
        per_s,
        max(m.busy or 0 for m in found),
        max(m.backpressured or 0 for m in found),
        lag_ms,
    )
    whole.records_out = int(per_s * step_s / 40)
    whole.state_bytes = int((220 + 160 * part + 30 * sick) * 2**20)
    if n % 2 == 0 or step_s > FINE:
        total = 380 + 120 * abs(math.sin(n * 3)) + sick * 41_000 * (part - 0.55) / 0.2
        whole.checkpoints, whole.checkpoints_failed = 1, int(sick > 0.9 and n % 6 == 0)
        whole.checkpoint_ms = total
        whole.start_delay_ms, whole.alignment_ms = total * (0.06 + 0.6 * sick), total * (0.1 + 0.1 * sick)
        whole.sync_ms, whole.async_ms, whole.pre_barrier_ms = total * 0.04, total * (0.5 - 0.4 * sick), total * 0.02
    return [*found, whole]


def _row(
    run: Run, at: datetime, step_s: int, uid: str, per_s: float, busy: float, blocked: float, lag_ms: int, *,
    role: str = "",
) -> Metrics:  # fmt: skip
    records = int(per_s * step_s)
    return Metrics(
        step_s=step_s, run_id=run.pk, at=at, operator=uid, token=0 if step_s > FINE else run.token * 10 + 1,
        span_ms=step_s * 1000, records_in=0 if role == "source" else records, records_out=records,
        bytes_in=records * 90, bytes_out=records * 90, busy=busy, backpressured=blocked, skew=1.2,
        watermark=int(at.timestamp() * 1000) - lag_ms, processing_lag_ms=lag_ms + 1_400, event_lag_ms=lag_ms,
        in_flight_bytes=2**20, state_bytes=2**24,
    )  # fmt: skip


def _subtasks(run: Run, now: datetime) -> None:
    """The newest ten minutes of each subtask; the last subtask has most of the records."""
    indexes, last = list(range(run.parallelism)), run.parallelism - 1
    shares = [5 if index == last else 1 for index in indexes]
    now_ms = int(now.timestamp() * 1000)
    numbers = {
        "index": indexes,
        "records_in": [20_000 * share for share in shares],
        "records_out": [20_000 * share for share in shares],
        "busy": [0.18 * share for share in shares],
        "backpressured": [0.01] * len(indexes),
        "watermark": [now_ms - 900 * share for share in shares],
        "in_flight_bytes": [2**16] * len(indexes),
    }
    made = []
    for n in range(120):
        operators = {operator["uid"]: numbers for operator in _operators(run)}
        at = datetime.fromtimestamp(int(now.timestamp()) // FINE * FINE, UTC) - n * timedelta(seconds=FINE)
        made.append(SubtaskMetrics(run_id=run.pk, at=at, token=run.token * 10 + 1, operators=operators))
    SubtaskMetrics.objects.bulk_create(made)


def backpressure(run: Run, root: str, waiting: tuple[str, ...], now: datetime) -> None:
    """The newest minute of each subtask: `root` is 100 % busy, and the operators `waiting` wait for receivers."""
    columns = {"index": [0, 1], "records_in": [50, 50], "records_out": [50, 50], "in_flight_bytes": [0, 0]}
    for n in range(12):
        operators = {
            operator["uid"]: {
                **columns,
                "busy": [1.0 if operator["uid"] == root else 0.05] * 2,
                "backpressured": [0.93 if operator["uid"] in waiting else 0.0] * 2,
                "watermark": [1_371_024_000_000 + 5_000 * (12 - n)] * 2,
            }
            for operator in _operators(run)
        }
        at = now - (n + 1) * timedelta(seconds=FINE)
        SubtaskMetrics.objects.create(run_id=run.pk, at=at, token=run.token, operators=operators)


def _operators(run: Run) -> list[dict[str, Any]]:
    graph = run.version.graph or {}
    return list(graph["operators"])


def slow_run() -> Run:
    """A running job whose join is slow now: the operators before it wait."""
    under_way = {"number": 31, "acknowledged": 4, "subtasks": 10, "kind": "checkpoint"}
    live = rows.live(checkpoint=under_way)
    changed = {
        "join": {"busy": 1.0, "rate_in": 21_480.0, "rate_out": 21_470.0},
        "flights": {"busy": 0.05, "backpressured": 0.93, "rate_out": 21_500.0},
        "prepared": {"busy": 0.04, "backpressured": 0.91, "rate_in": 21_500.0, "rate_out": 21_490.0},
        "window": {"busy": 0.07, "rate_in": 21_470.0, "rate_out": 3.1},
    }
    operators = {uid: {**told, **changed.get(uid, {})} for uid, told in live["operators"].items()}
    run = rows.run(rows.job("flights-slow"), token=9_100, live={**live, "operators": operators})
    now = timezone.now()
    record(run, now, told=0.74)
    SubtaskMetrics.objects.filter(run_id=run.pk).delete()
    backpressure(run, "join", ("flights", "prepared"), now)
    for number in range(1, 31):
        at = now - timedelta(seconds=42 * (31 - number))
        lasted = 380 + max(0, number - 18) * 3_100
        late = [
            {**told, "max_start_delay_ms": lasted * 0.99 - 240 if told["uid"] in ("join", "window", "parquet") else 4.0}
            for told in rows.OPERATORS
        ]
        rows.checkpoint(
            run,
            number,
            triggered_at=at,
            duration_ms=lasted,
            operators=late,
            acknowledgements=rows.acknowledgements(of=late),
        )
    rows.checkpoint(run, 31, status="in_progress", acknowledged=4)
    return run


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
