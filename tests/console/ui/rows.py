"""Rows as the job master and the console write them, for pages to show."""

from datetime import timedelta
from typing import Any

import msgspec
from django.utils import timezone

from console.accounts.models import User
from console.checkpoints.models import Checkpoint, StateQuery
from console.jobs.models import Attempt, Job, JobVersion, Pipeline, Run
from console.operations.models import Operation
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.settings import JobSettings
from runtime.core.snapshot.manifest import folder_of
from tests.console.stored import store

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "input": {"type": "string", "minLength": 1, "description": "Folder that is watched for flight files."},
        "output": {"type": "string", "minLength": 1, "description": "Folder of the Parquet results."},
        "max_disorder_ms": {"type": "integer", "minimum": 0, "default": 3_600_000},
        "on_malformed": {"enum": ["fail", "skip", "dead_letter"], "default": "fail"},
    },
    "required": ["input", "output"],
    "additionalProperties": False,
}
PARAMS = {"input": "/data/flights", "output": "/data/delays", "max_disorder_ms": 3_600_000, "on_malformed": "fail"}

RETAINED = 12  #: checkpoints that a history leaves in storage
QUERIES = {
    "open windows by airline": "SELECT name AS airline, count(*) AS open_windows, sum(`flights:count`) AS flights\n"
    "FROM window_state GROUP BY name ORDER BY flights DESC",
}
#: A page of the rows of a state, as the stage prints it.
TABLE: dict[str, Any] = {
    "columns": [
        {"name": "key_group", "type": "int", "is_key": False},
        {"name": "carrier", "type": "string", "is_key": True},
        {"name": "name", "type": "string", "is_key": True},
        {"name": "window_start", "type": "bigint", "is_key": True},
        {"name": "flights:count", "type": "bigint", "is_key": False},
        {"name": "mean_delay:sum", "type": "double", "is_key": False},
        {"name": "note", "type": "string", "is_key": False},
    ],
    "rows": [
        [
            group,
            carrier,
            name,
            1_371_024_000_000,
            12 + group,
            None if group % 5 else 18.25,
            "late" * (30 * (group == 4)),
        ]
        for group in range(20)
        for carrier, name in [("AA", "American Airlines Inc."), ("B6", "<JetBlue> Airways")]
    ],
    "keys": [{"name": name, "type": kind} for name, kind in (("carrier", "string"), ("window_start", "int64"))],
    "is_cut": True,
    "has_cut_cells": True,
    "cursor": {"group": 19, "skip": 2},
}

GRAPH: dict[str, Any] = {
    "max_parallelism": 128,
    "parallelism": 2,
    "operators": [
        {"uid": "flights", "name": "flights", "role": "source", "parallelism": 2, "bounded": False,
         "guarantee": "exactly-once"},
        {"uid": "prepared", "name": "prepared", "role": "operator", "parallelism": 2, "bounded": False,
         "guarantee": "exactly-once"},
        {"uid": "airlines", "name": "airlines", "role": "source", "parallelism": 1, "bounded": True,
         "guarantee": "exactly-once"},
        {"uid": "join", "name": "join airlines", "role": "operator", "parallelism": 2, "bounded": False,
         "guarantee": "exactly-once"},
        {"uid": "window", "name": "window 1 day", "role": "operator", "parallelism": 2, "bounded": False,
         "guarantee": "exactly-once"},
        {"uid": "parquet", "name": "parquet", "role": "sink", "parallelism": 2, "bounded": False,
         "guarantee": "exactly-once"},
    ],
    "edges": [
        {"source": "flights", "target": "prepared", "input": 0, "partitioning": "forward", "keys": [], "build": False},
        {"source": "prepared", "target": "join", "input": 0, "partitioning": "forward", "keys": [], "build": False},
        {"source": "airlines", "target": "join", "input": 1, "partitioning": "broadcast", "keys": [], "build": True},
        {"source": "join", "target": "window", "input": 0, "partitioning": "hash", "keys": ["carrier", "origin"],
         "build": False},
        {"source": "window", "target": "parquet", "input": 0, "partitioning": "forward", "keys": [], "build": False},
    ],
}  # fmt: skip

JUNE_2013_MS = 1_371_024_000_000


def live(acknowledged: int | None = 5, **changes: Any) -> dict[str, Any]:
    """What a job master reports of the flights job in full flow."""

    def operator(state: str = "running", **numbers: Any) -> dict[str, Any]:
        return {"state": state, "watermark": JUNE_2013_MS, "busy": 0.0, "backpressured": 0.0, "subtasks": [], **numbers}

    operators = {
        "flights": operator(records_out=168_388, rate_out=84_211.4, busy=0.42, backpressured=0.31),
        "prepared": operator(records_in=168_404, records_out=168_388, rate_in=84_211.4, rate_out=84_211.4, busy=0.18),
        "airlines": operator("finished", records_out=16, watermark=None),
        "join": operator(records_in=168_404, records_out=168_388, rate_in=84_211.4, rate_out=84_190.0, busy=0.61),
        "window": operator(records_in=168_388, records_out=5_412, rate_in=84_190.0, rate_out=12.4, busy=0.23),
        "parquet": operator(records_in=5_412, rate_in=12.4, busy=0.02),
    }
    under_way = {"number": 214, "acknowledged": acknowledged, "subtasks": 10, "kind": "checkpoint"}
    return {
        "operators": operators,
        "slots": [
            {"index": 0, "pid": 48_213, "host": "127.0.0.1", "executor": "4", "address": "grpc://127.0.0.1:4100",
             "log": "/scratch/app-20261122121314-0000/4/stderr", "seen_ms_ago": 212,
             "memory_bytes": 412 << 20, "memory_bound_bytes": 512 << 20},
            {"index": 1, "pid": 48_215, "host": "127.0.0.1", "seen_ms_ago": 198},
        ],
        "checkpoint": None if acknowledged is None else under_way,
        "counters": {"late_records": 0},
        "restarts": 1,
        "parallelism": 2,
        **changes,
    }  # fmt: skip


def operator_user(name: str = "operator", **more: Any) -> User:
    """Somebody who may do everything."""
    return User.objects.create_user(name, password="a-river-runs", is_superuser=True, is_staff=True, **more)


def reader(name: str = "reader") -> User:
    """Somebody who may only look."""
    return User.objects.create_user(name, password="a-river-runs")


def pipeline(name: str = "flights") -> Pipeline:
    return Pipeline.objects.update_or_create(
        name=name,
        defaults={
            "description": "Departure delays by carrier and origin, per day.",
            "schema": SCHEMA,
            "queries": QUERIES,
        },
    )[0]


def job(name: str = "flights-delays", version: dict[str, Any] | None = None) -> Job:
    """A job with one version that is ready."""
    pipeline()
    made = Job.objects.create(name=name, pipeline="flights", description="Delays of the year 2013.")
    JobVersion.objects.create(job=made, number=1, **{"parallelism": 2, "params": PARAMS, "settings": _settings(),
                              "state": "ready", "graph": GRAPH, **(version or {})})  # fmt: skip
    return made


def run(of: Job, state: str = "running", **changes: Any) -> Run:
    now = timezone.now()
    started = now - timedelta(hours=3, minutes=12)
    ended = now - timedelta(minutes=2) if state in ("finished", "stopped", "canceled", "failed") else None
    version = of.versions.get(number=1)
    owner = "" if ended or state == "queued" else "host-1:4711:0badcafe"
    given = {"parallelism": version.parallelism, "created_at": started, "started_at": started, "ended_at": ended,
             "live": live(), "live_at": ended or now, "token": 40 + Attempt.objects.count(),
             "lease_owner": owner}  # fmt: skip
    return Run.objects.create(job=of, version=version, state=state, **{**given, **changes})


def attempts(of: Run) -> None:
    """A failed attempt and the attempt after it, which ends with the run."""
    now = timezone.now()
    began = of.started_at or now
    Attempt.objects.create(
        run=of, token=of.token * 10, started_at=began, ended_at=now - timedelta(minutes=9), outcome="failed",
        reason="slot 1 was lost: its control connection closed",
    )  # fmt: skip
    outcome = {"finished": "ended", "failed": "failed"}.get(of.state, "running")
    Attempt.objects.create(
        run=of, token=of.token * 10 + 1, started_at=now - timedelta(minutes=9), ended_at=of.ended_at, outcome=outcome,
        reason=of.failure["message"] if of.failure else "",
    )  # fmt: skip


def _operator(uid: str, state_bytes: int, alignment_ms: float, sync_ms: float, async_ms: float) -> dict[str, Any]:
    phases = {"start_delay_ms": 4.0, "alignment_ms": alignment_ms, "sync_ms": sync_ms, "async_ms": async_ms}
    longest = {f"max_{phase}": ms for phase, ms in phases.items()}
    return {"uid": uid, "finished": "running", "subtasks": 2, "state_bytes": state_bytes, "written_bytes": 512,
            "has_state": state_bytes > 0, **longest, "slowest": {"subtask": 1, **phases}}  # fmt: skip


def acknowledgements(*missing: str, of: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The acknowledgements of a checkpoint with the operators `of`, without the subtasks of the `missing` operators."""
    found: dict[str, Any] = {}
    for operator in of or OPERATORS:
        uid, phases = operator["uid"], ("start_delay", "alignment", "pre_barrier", "sync", "async")
        if operator["finished"] == "finished":
            continue
        times = [operator[f"max_{phase}_ms"] for phase in phases if phase != "pre_barrier"]
        here = uid not in missing
        found[uid] = {
            "index": [0, 1],
            "at_ms": [round(sum(times)), round(sum(times)) + 2] if here else [None, None],
            **{f"{phase}_ms": [operator.get(f"max_{phase}_ms", 0.0)] * 2 if here else [None] * 2 for phase in phases},
            "written_bytes": [operator["written_bytes"] // 2] * 2 if here else [None] * 2,
            "state_bytes": [operator["state_bytes"] // 2] * 2 if here else [None] * 2,
        }
    return found


OPERATORS = [
    _operator("flights", 2_114, 0.0, 1.2, 14.0),
    _operator("prepared", 0, 0.0, 0.4, 2.0),
    {**_operator("airlines", 0, 0.0, 0.0, 0.0), "finished": "finished", "max_start_delay_ms": 0.0, "slowest": None},
    _operator("join", 1_904, 21.0, 0.8, 9.0),
    _operator("window", 1_254_112, 48.0, 6.4, 161.0),
    _operator("parquet", 812, 3.0, 22.0, 11.0),
]


def checkpoint(
    of: Run, number: int, kind: str = "checkpoint", status: str = "completed", *, is_stored: bool = True, **changes: Any
) -> Checkpoint:
    triggered = changes.pop("triggered_at", timezone.now() - timedelta(seconds=5))
    duration_ms = changes.pop("duration_ms", 312 if status == "completed" else None)
    done = status == "completed"
    given: dict[str, Any] = {
        "token": of.token * 10 + 1,
        "triggered_at": triggered,
        "completed_at": triggered + timedelta(milliseconds=duration_ms or 0) if done else None,
        "duration_ms": duration_ms,
        "size_bytes": 1_258_942 if done else None,
        "written_bytes": 86_311 if done else None,
        "acknowledged": 10 if done else 6,
        "subtasks": 10,
        "path": folder_of(CheckpointKind(kind), number, of.token * 10 + 1) if done else "",
        "operators": OPERATORS if done else [],
        "finished_operators": ["airlines"] if done else [],
        "acknowledgements": acknowledgements() if done else acknowledgements("window", "parquet"),
    }
    row = Checkpoint.objects.create(job=of.job, run=of, number=number, kind=kind, status=status, **{**given, **changes})
    if done and is_stored:
        store(row)
    return row


def state_query(of: Checkpoint, state: str = "succeeded", **changes: Any) -> StateQuery:
    """A page of rows, or one that is under way."""
    now = timezone.now()
    given: dict[str, Any] = {
        "request": {"kind": "rows", "operator": "window", "state": "state", "key": {"name": "American"}, "cursor": {}},
        "created_at": now - timedelta(seconds=20),
    }
    if state == "succeeded":
        given |= {"result": TABLE, "ended_at": now - timedelta(seconds=3)}
    if state == "running":
        given |= {"progress": {"phase": "reading", "tasks": 8, "tasks_done": 3}, "beat_at": now}
    return StateQuery.objects.create(checkpoint=of, state=state, **{**given, **changes})


def history(of: Run, upto: int = 214) -> list[Checkpoint]:
    """Some sixty checkpoints as a day brings them: savepoints, two failures, a restart, one under way.

    The newest are in storage, and the savepoints.
    """
    now, made = timezone.now(), []
    for number in range(upto - 62, upto):
        at = now - timedelta(seconds=5 * (upto - number))
        more: dict[str, Any] = {"triggered_at": at, "duration_ms": 250 + (number * 7919) % 190}
        if number % 29 == 0:
            more["duration_ms"] = 2_310
        if number < upto - 24:
            more["token"] = of.token * 10
        if number in (upto - 26, upto - 25):
            made.append(checkpoint(of, number, status="failed", reason="expired" if number % 2 else "async_failed",
                                   detail="slot 1 was lost", **{**more, "duration_ms": None}))  # fmt: skip
            continue
        kind = "savepoint" if number in (upto - 40, upto - 6) else "checkpoint"
        stored = kind == "savepoint" or number > upto - RETAINED
        made.append(checkpoint(of, number, kind=kind, is_stored=stored, **more))
    made.append(checkpoint(of, upto, status="in_progress", triggered_at=now))
    return made


def operation(of: Job, kind: str = "savepoint", state: str = "succeeded", **changes: Any) -> Operation:
    now = timezone.now()
    given: dict[str, Any] = {"created_at": now - timedelta(seconds=44), "started_at": now - timedelta(seconds=43)}
    if state in ("succeeded", "failed"):
        given["ended_at"] = now - timedelta(seconds=42)
    return Operation.objects.create(job=of, kind=kind, state=state, **{**given, **changes})


def _settings() -> Any:
    return msgspec.to_builtins(JobSettings())
