"""A console with a long history: jobs, runs, checkpoints and numbers, inserted by Postgres itself.

The first job has 30 operators, a tenth of all checkpoints and numbers at all resolutions; it shows whether a page grows
with its job. A few more jobs run and have numbers; all others have ended. Each checkpoint has the acknowledgements of
its subtasks; in a failed checkpoint the last operator has not acknowledged. The first job has a schedule of savepoints,
and its newest snapshots have files.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import django
import msgspec

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.utils import timezone  # noqa: E402

from benchmarks.console.snapshots import store_snapshots  # noqa: E402
from console.accounts.models import User  # noqa: E402
from console.checkpoints.selectors import restorable  # noqa: E402
from console.health.housekeeping import store_verdicts  # noqa: E402
from console.jobs.models import Job, Pipeline, Run  # noqa: E402
from console.metrics.partitions import create_partitions, drop_partitions  # noqa: E402
from console.operations.services import OperationRequestContext, request  # noqa: E402
from runtime.core.checkpoint.acknowledgements import PHASES  # noqa: E402
from runtime.core.job.settings import JobSettings  # noqa: E402

WIDE: Final = 30  #: operators of the first job
NARROW: Final = 6
SUBTASKS: Final = 4
_WITH_FILES: Final = 4  #: newest snapshots of the first job: a savepoint, and the checkpoints that are not discarded
_MINUTES_OF_OTHERS: Final = timedelta(hours=2)  #: numbers by minute of the jobs except the first, for the list of jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Rows of each table. `running` jobs have live reports, and numbers of `days` in steps of 15 min."""

    jobs: int
    checkpoints: int
    running: int
    days: int

    def __str__(self) -> str:
        return f"{self.jobs:,} jobs, of which {self.running} run, and {self.checkpoints:,} checkpoints"


@dataclass(frozen=True, slots=True)
class Filled:
    """The database, and the run of 30 operators."""

    user: User
    run: Run


FULL: Final = Size(jobs=5_000, checkpoints=1_000_000, running=50, days=30)
QUICK: Final = Size(jobs=100, checkpoints=20_000, running=5, days=1)

_PHASES_MS: Final = tuple(f"{phase}_ms" for phase in PHASES)
_JOBS: Final = """
INSERT INTO weir_job (name, pipeline, description, created_by_id, last_checkpoint_id)
SELECT 'job-' || lpad(n::text, 5, '0'), 'orders', '', %(user)s, 0 FROM generate_series(1, %(jobs)s) n;
INSERT INTO weir_job_version (job_id, number, parallelism, settings, state, graph, created_by_id)
SELECT id, 1, %(subtasks)s, %(settings)s, 'ready', CASE WHEN id = %(first)s THEN %(wide)s ELSE %(narrow)s END::jsonb,
    %(user)s
FROM weir_job;
INSERT INTO weir_run (job_id, version_id, parallelism, state, token, created_at, started_at, ended_at, live, live_at,
    created_by_id)
SELECT v.job_id, v.id, %(subtasks)s,
    CASE WHEN n = 3 AND v.job_id < %(first)s + %(running)s THEN 'running' ELSE 'stopped' END,
    v.job_id * 100 + n * 10, now() - (4 - n) * interval '10 days', now() - (4 - n) * interval '10 days',
    CASE WHEN n < 3 OR v.job_id >= %(first)s + %(running)s THEN now() - (3 - n) * interval '10 days' END,
    CASE WHEN v.job_id = %(first)s THEN %(wide_live)s ELSE %(narrow_live)s END::jsonb, now(), %(user)s
FROM weir_job_version v, generate_series(1, 3) n ORDER BY v.job_id, n;
INSERT INTO weir_attempt (run_id, token, started_at, ended_at, outcome, reason, detail)
SELECT r.id, r.token - 3 + n, r.created_at + n * interval '1 day',
    CASE WHEN n < 3 THEN r.created_at + (n + 1) * interval '1 day' - interval '20 s' END,
    CASE WHEN n < 3 THEN 'failed' ELSE 'running' END, CASE WHEN n < 3 THEN 'slot ' || n || ' was lost' ELSE '' END,
    CASE WHEN n < 3 THEN '{"code": "attempt-failed", "message": "slot 1 was lost", "operator": "step-1"}'::jsonb END
FROM weir_run r, generate_series(1, 3) n;
INSERT INTO weir_operation (id, job_id, run_id, kind, params, state, requested_by_id, created_at, started_at, ended_at)
SELECT gen_random_uuid(), r.job_id, r.id, kind, '{}', 'succeeded', %(user)s, r.created_at, r.created_at,
    r.created_at + interval '3 s'
FROM weir_run r, unnest(ARRAY['start', 'savepoint', 'stop']) kind WHERE kind = 'start' OR r.state = 'stopped';
"""
_CHECKPOINTS: Final = """
INSERT INTO weir_checkpoint (job_id, run_id, token, number, kind, status, triggered_at, completed_at, duration_ms,
    size_bytes, written_bytes, acknowledged, subtasks, reason, path, operators, acknowledgements, discarded_at)
SELECT r.job_id, r.id, r.token, n, CASE WHEN n %% 500 = 0 THEN 'savepoint' ELSE 'checkpoint' END,
    CASE WHEN n %% 50 = 7 THEN 'failed' ELSE 'completed' END, now() - (%(each)s - n) * interval '10 s',
    now() - (%(each)s - n) * interval '10 s', 250 + n %% 190, 1258942, 86311, %(subtasks)s, %(subtasks)s,
    CASE WHEN n %% 50 = 7 THEN 'expired' ELSE '' END,
    CASE WHEN n %% 500 = 0 THEN 'savepoint-' ELSE 'chk-' END || n || '-' || r.token,
    CASE WHEN r.id = %(wide_run)s THEN %(wide)s ELSE %(narrow)s END::jsonb,
    CASE WHEN n %% 50 = 7 THEN %(incomplete)s ELSE %(acknowledgements)s END::jsonb,
    CASE WHEN n < %(each)s - 3 AND n %% 500 > 0 THEN now() END
FROM weir_run r, generate_series(1, %(each)s) n WHERE r.id = ANY(%(runs)s);
"""
_NUMBERS: Final = """
INSERT INTO weir_metrics (step_s, run_id, at, operator, token, span_ms, records_in, records_out, bytes_in, bytes_out,
    busy, backpressured, skew, watermark, processing_lag_ms, event_lag_ms, in_flight_bytes, state_bytes,
    start_delay_ms, pre_barrier_ms, alignment_ms, sync_ms, async_ms, checkpoints, checkpoints_failed, checkpoint_ms)
SELECT %(step)s, r.id, at, operator, 0, %(step)s * 1000, 400000, 400000, 9000000, 9000000, random(), random() / 9, 1.1,
    extract(epoch FROM at) * 1000 - 900, 900, 600, 100000, 2000000, 9, 2, 30, 4, 150, 1, 0, 200 + 90 * random()
FROM weir_run r, generate_series(%(begin)s::timestamptz, %(end)s, %(step)s * interval '1 s') at,
    unnest(%(operators)s::text[]) operator
WHERE r.id = ANY(%(runs)s)
"""
_SUBTASKS: Final = """
INSERT INTO weir_subtask_metrics (run_id, at, token, operators)
SELECT r.id, at, r.token, %(operators)s FROM weir_run r,
    generate_series(%(end)s - interval '1 hour', %(end)s, interval '5 s') at WHERE r.id = %(run)s
"""


def fill(size: Size) -> Filled:
    """Migrates an empty database and fills it. Prints its progress to stderr."""
    begun = time.monotonic()
    call_command("migrate", verbosity=0)
    user = User.objects.create_superuser("operator", password="")
    Pipeline.objects.create(name="orders", schema={"type": "object", "properties": {}})
    now = timezone.now().replace(microsecond=0)
    for days in range(size.days + 1):
        create_partitions(now - timedelta(days=days))
    drop_partitions(now, {})  # as housekeeping does
    wide, narrow = _uids(WIDE), _uids(NARROW)
    _execute(
        _JOBS, user=user.pk, jobs=size.jobs, running=size.running, first=1, subtasks=SUBTASKS, wide=_json(_graph(wide)),
        narrow=_json(_graph(narrow)), wide_live=_json(_live(wide)), narrow_live=_json(_live(narrow)),
        settings=_json(msgspec.to_builtins(JobSettings())),
    )  # fmt: skip
    first = Job.objects.get(name="job-00001")
    newest = list(Run.objects.order_by("job_id", "-pk").distinct("job_id").values_list("pk", flat=True))
    run = Run.objects.get(pk=newest[0])
    operators = {"wide": _json(_statistics(wide)), "narrow": _json(_statistics(narrow)), "wide_run": run.pk}
    of_first = size.checkpoints // 10
    each = (size.checkpoints - of_first) // (size.jobs - 1)
    for runs, number, uids in (([run.pk], of_first, wide), (newest[1:], each, narrow)):
        _execute(
            _CHECKPOINTS, runs=runs, each=number, subtasks=len(uids) * SUBTASKS, **operators,
            acknowledgements=_json(_acknowledgements(uids, len(uids))),
            incomplete=_json(_acknowledgements(uids, len(uids) - 1)),
        )  # fmt: skip
    _progress(begun, "rows of jobs")
    store_snapshots(restorable(first)[:_WITH_FILES], _graph(wide))
    request(OperationRequestContext(user=user), first, "schedule", {"every_hours": 6})
    _progress(begun, "files of snapshots")
    for step_s, length in ((5, timedelta(hours=24)), (60, timedelta(days=14)), (900, timedelta(days=size.days))):
        _numbers([run.pk], ["", *wide], step_s, now - min(length, timedelta(days=size.days)), now)
    for step_s, length in ((60, _MINUTES_OF_OTHERS), (900, timedelta(days=size.days))):
        _numbers(newest[1 : size.running], ["", *narrow], step_s, now - length, now)
    _execute(_SUBTASKS, run=run.pk, end=now, operators=_json(_subtask_numbers(wide)))
    for step_s, until in ((60, now - timedelta(minutes=2)), (900, now - timedelta(minutes=20))):
        _execute(
            "INSERT INTO weir_metrics_rollup VALUES (%(step)s, %(until)s) ON CONFLICT (step_s) DO UPDATE SET until = "
            "excluded.until", step=step_s, until=until,
        )  # fmt: skip
    _progress(begun, "numbers")
    for _ in range(-(-size.jobs // 200)):
        store_verdicts()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    _progress(begun, "verdicts and statistics")
    assert first.pk == run.job_id
    return Filled(user, run)


def _execute(query: str, **values: Any) -> None:
    with connection.cursor() as cursor:
        for statement in filter(str.strip, query.split(";")):
            cursor.execute(statement, values)


def _numbers(runs: Sequence[int], operators: Sequence[str], step_s: int, begin: datetime, end: datetime) -> None:
    aligned = datetime.fromtimestamp(int(begin.timestamp()) // step_s * step_s, begin.tzinfo)
    _execute(_NUMBERS, runs=list(runs), operators=list(operators), step=step_s, begin=aligned, end=end)


def _progress(begun: float, part: str) -> None:
    sys.stderr.write(f"{time.monotonic() - begun:6.1f} s  {part}\n")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _uids(count: int) -> list[str]:
    return [f"step-{number}" for number in range(count)]


def _graph(uids: Sequence[str]) -> Mapping[str, Any]:
    """Two sources, a sink, and edges from each operator to the next but one."""
    last = len(uids) - 1
    roles = {0: "source", 1: "source", last: "sink"}
    operators = [
        {"uid": uid, "name": f"step {number}", "role": roles.get(number, "operator"), "parallelism": SUBTASKS,
         "most": SUBTASKS, "bounded": False, "guarantee": "exactly-once", "commits": number == last, "durations": {},
         "aggregates": [], "times": [], "exclusive": False}
        for number, uid in enumerate(uids)
    ]  # fmt: skip
    edges = [
        {"source": uid, "target": uids[min(number + 2, last)], "input": 0, "partitioning": "hash", "keys": ["id"],
         "key_types": [], "value_types": [], "build": False, "feedback": False, "output": ""}
        for number, uid in enumerate(uids[:-1])
    ]  # fmt: skip
    code = {"package": "", "version": "", "graph": ""}
    return {"code": code, "max_parallelism": 128, "parallelism": SUBTASKS, "operators": operators, "edges": edges}


def _live(uids: Sequence[str]) -> Mapping[str, Any]:
    numbers = {"state": "running", "records_in": 9_120_400, "records_out": 9_120_400, "rate_in": 84_211.0,
               "rate_out": 84_211.0, "busy": 0.3, "backpressured": 0.1, "watermark": 1_790_000_000_000}  # fmt: skip
    slots = [{"index": n, "pid": 4_000 + n, "host": "host", "seen_ms_ago": 200} for n in range(SUBTASKS)]
    return {"operators": dict.fromkeys(uids, numbers), "slots": slots, "restarts": 2, "parallelism": SUBTASKS}


def _statistics(uids: Sequence[str]) -> Sequence[Mapping[str, Any]]:
    numbers = {"finished": "running", "subtasks": SUBTASKS, "state_bytes": 40_000, "written_bytes": 2_000,
               "max_start_delay_ms": 2.0, "max_pre_barrier_ms": 1.0, "max_alignment_ms": 20.0, "max_sync_ms": 4.0,
               "max_async_ms": 90.0}  # fmt: skip
    return [{"uid": uid, **numbers} for uid in uids]


def _acknowledgements(uids: Sequence[str], acknowledged: int) -> Mapping[str, Any]:
    """The columns of each operator. The operators after the first `acknowledged` have no numbers."""
    columns = {}
    for place, uid in enumerate(uids):
        numbers: dict[str, Sequence[Any]]
        if place < acknowledged:
            delay_ms = [place * 1.5 + index for index in range(SUBTASKS)]
            numbers = {"at_ms": [round(ms) + 118 for ms in delay_ms], "start_delay_ms": delay_ms,
                       "alignment_ms": [20.25] * SUBTASKS, "pre_barrier_ms": [1.5] * SUBTASKS,
                       "sync_ms": [4.125] * SUBTASKS, "async_ms": [90.5] * SUBTASKS,
                       "written_bytes": [500 + place] * SUBTASKS,
                       "state_bytes": [10_000 + place] * SUBTASKS}  # fmt: skip
        else:
            numbers = dict.fromkeys(("at_ms", *_PHASES_MS, "written_bytes", "state_bytes"), [None] * SUBTASKS)
        columns[uid] = {"index": list(range(SUBTASKS)), **numbers}
    return columns


def _subtask_numbers(uids: Sequence[str]) -> Mapping[str, Any]:
    indexes = list(range(SUBTASKS))
    columns = {"records_in": 20_000, "records_out": 20_000, "busy": 0.2, "backpressured": 0.01,
               "watermark": 1_790_000_000_000, "in_flight_bytes": 65_536}  # fmt: skip
    numbers = {"index": indexes, **{name: [value] * SUBTASKS for name, value in columns.items()}}
    return dict.fromkeys(uids, numbers)
