"""Rows as the job master and the console write them, for pages to show."""

from datetime import datetime, timedelta
from typing import Any
from zlib import crc32

import msgspec
from django.utils import timezone

from console.accounts.models import User
from console.checkpoints.models import Checkpoint, StateQuery
from console.health.findings import Finding, Level
from console.health.models import JobHealth
from console.health.verdicts import encode
from console.jobs.models import Attempt, Job, JobVersion, Pipeline, Run
from console.operations.models import Operation
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.settings import JobSettings
from runtime.core.snapshot.manifest import folder_of
from tests.console import graphs
from tests.console.stored import store
from tests.console.ui.story import (
    DEPLOYMENT,
    FIRST_CHECKPOINT,
    INTERVAL,
    LASTED,
    OPEN_SESSIONS,
    RATE,
    RESTART_DELAY,
    SESSION,
    SESSION_ACTIVE,
    SESSIONS_PER_S,
    STATE_BYTES,
    Story,
    Taken,
    story_of,
)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "input": {"type": "string", "minLength": 1, "description": "Folder that is watched for flight files."},
        "output": {"type": "string", "minLength": 1, "description": "Folder of the Parquet results."},
        "max_disorder_ms": {"type": "integer", "minimum": 0, "default": 500},
        "on_malformed": {"enum": ["fail", "skip", "dead_letter"], "default": "fail"},
    },
    "required": ["input", "output"],
    "additionalProperties": False,
}
PARAMS = {"input": "/data/flights", "output": "/data/delays", "max_disorder_ms": 500, "on_malformed": "fail"}

MILLISECOND = timedelta(milliseconds=1)
ENDED_AGO = timedelta(minutes=2)  #: end of a run that has ended
RETAINED = 12  #: checkpoints that retention leaves in storage
QUERIES = {
    "open sessions by airline": "SELECT carrier, count(*) AS open_sessions, sum(`reports:count`) AS reports\n"
    "FROM window_state GROUP BY carrier ORDER BY reports DESC",
}
JUNE_2013_MS = 1_371_024_030_000  #: 08:00:30, the watermark of reports of a test without a story
CARRIER, CARRIER_SESSIONS = "HA", 40
REPORTS_PER_S = RATE / SESSIONS_PER_S / SESSION_ACTIVE.total_seconds()  #: of a flight, from its first to its last


def _sessions(watermark_ms: int) -> list[list[Any]]:
    """The open sessions of an airline, as the stage prints them: by key group, which is a hash of the key.

    The oldest of them ends next, the newest has begun just now.
    """
    apart_ms = SESSION // MILLISECOND // CARRIER_SESSIONS
    sessions: list[list[Any]] = []
    for n in range(CARRIER_SESSIONS):
        first_ms = watermark_ms - n * apart_ms - 1_700 - 91 * n % 977
        active_ms = SESSION_ACTIVE // MILLISECOND + 1_013 * (n * n * 7 % 41 - 20)
        last_ms = min(watermark_ms, first_ms + active_ms)
        reports = round((last_ms - first_ms) / 1_000 * REPORTS_PER_S)
        delay = None if n % 13 == 5 else round(reports * (1.5 + n % 7), 2)
        flight = str(11 + 37 * n % 391)
        key_group = crc32(f"{CARRIER} {flight}".encode()) % 128
        sessions.append([key_group, CARRIER, flight, first_ms, last_ms, reports, delay])
    return sorted(sessions, key=lambda row: row[:3])


def table(watermark_ms: int) -> dict[str, Any]:
    """The rows of a state with a key, as the stage prints them: the open sessions of an airline."""
    return {
        "columns": [
            {"name": "key_group", "type": "int", "is_key": False},
            {"name": "carrier", "type": "string", "is_key": True},
            {"name": "flight", "type": "string", "is_key": True},
            {"name": ":session", "type": "bigint", "is_key": True},
            {"name": ":last", "type": "bigint", "is_key": False},
            {"name": "reports:count", "type": "bigint", "is_key": False},
            {"name": "mean_delay:sum", "type": "double", "is_key": False},
        ],
        "rows": _sessions(watermark_ms),
        "keys": [
            {"name": name, "type": kind}
            for name, kind in (("carrier", "string"), ("flight", "string"), (":session", "int64"))
        ],
        "is_cut": False,
        "has_cut_cells": False,
        "cursor": {},
    }


GRAPH: dict[str, Any] = {
    "code": graphs.CODE,
    "max_parallelism": 128,
    "parallelism": 2,
    "operators": [
        graphs.operator("flights", "flights", "source", 2),
        graphs.operator("prepared", "prepared", "operator", 2),
        graphs.operator("airlines", "airlines", "source", 1, most=1, bounded=True),
        graphs.operator("join", "join airlines", "operator", 2),
        graphs.operator("window", "sessions", "operator", 2),
        graphs.operator("parquet", "parquet", "sink", 2),
    ],
    "edges": [
        graphs.edge("flights", "prepared"),
        graphs.edge("prepared", "join"),
        graphs.edge("airlines", "join", 1, "broadcast", build=True),
        graphs.edge("join", "window", 0, "hash", "carrier", "flight"),
        graphs.edge("window", "parquet"),
    ],
}

LATE = "no acknowledgement from subtasks 0 and 1 of join airlines, and 4 subtasks behind them"
LOST = "slot 1 was lost: the other side closed the connection"
_APPLICATION, _LOST_EXECUTOR = "app-20261122121314-0000", 5
LOST_SLOT = {
    "code": "attempt-failed", "message": LOST, "failures": 1, "slot": 1,
    "slot_log": f"/scratch/{_APPLICATION}/{_LOST_EXECUTOR}/stderr on host-2",
}  # fmt: skip


def slot(index: int, host: str, executor: int, application: str = _APPLICATION, seat: int = 0) -> dict[str, Any]:
    """What a job master reports of a slot. `seat`: number of the run, which shares its hosts with other runs."""
    pid = 33_661 + 3_638 * executor + 811 * seat
    return {"index": index, "pid": pid, "host": host, "executor": str(executor),
            "address": f"grpc://{host}:{4100 + 10 * seat + index}", "log": f"/scratch/{application}/{executor}/stderr",
            "seen_ms_ago": 212 - 14 * index, "memory_bytes": 400 + (pid - 48_201) % 41 << 20,
            "memory_bound_bytes": 512 << 20}  # fmt: skip


def seat(of: Run) -> int:
    """The number of a run among those of the test."""
    return Run.objects.filter(pk__lt=of.pk).count()


def application(of: Run) -> str:
    """Spark's id of the application of a run, which has the time of its start."""
    return f"app-{of.started_at or of.created_at:%Y%m%d%H%M%S}-{seat(of):04}"


def live(acknowledged: int | None = 6, **changes: Any) -> dict[str, Any]:
    """What a job master reports of the flights job in full flow, two minutes after the loss of slot 1 on `host-2`."""
    read, written, attempt_s = RATE, SESSIONS_PER_S, 120

    def operator(state: str = "running", rate_in: float = 0.0, rate_out: float = 0.0, **numbers: Any) -> dict[str, Any]:
        return {"state": state, "watermark": JUNE_2013_MS, "busy": 0.0, "backpressured": 0.0, "subtasks": [],
                "rate_in": rate_in, "rate_out": rate_out, "records_in": round(rate_in * attempt_s),
                "records_out": round(rate_out * attempt_s), **numbers}  # fmt: skip

    operators = {
        "flights": operator(rate_out=read, busy=0.42, backpressured=0.04),
        "prepared": operator(rate_in=read, rate_out=read, busy=0.18),
        "airlines": operator("finished", records_out=16, watermark=None),
        "join": operator(rate_in=read, rate_out=read, busy=0.61),
        "window": operator(rate_in=read, rate_out=written, busy=0.23, open_results={"sessions": OPEN_SESSIONS}),
        "parquet": operator(rate_in=written, busy=0.02),
    }
    under_way = {"number": 214, "acknowledged": acknowledged, "subtasks": 10, "kind": "checkpoint"}
    return {
        "operators": operators,
        "slots": [slot(0, "host-1", 4), slot(1, "host-3", 6)],
        "checkpoint": None if acknowledged is None else under_way,
        "counters": {"late_records": 0},
        "restarts": 1,
        "parallelism": 2,
        **changes,
    }  # fmt: skip


def operator_user(name: str = "operator", **fields: Any) -> User:
    """Somebody who may do everything."""
    return User.objects.create_user(name, password="a-river-runs", is_superuser=True, is_staff=True, **fields)


def reader(name: str = "reader") -> User:
    """Somebody who may only look."""
    return User.objects.create_user(name, password="a-river-runs")


def pipeline(name: str = "flights") -> Pipeline:
    return Pipeline.objects.update_or_create(
        name=name,
        defaults={
            "description": "Delays by carrier and flight. A session ends 15 min after its last report.",
            "schema": SCHEMA,
            "queries": QUERIES,
        },
    )[0]


def job(name: str = "flights-delays", version: dict[str, Any] | None = None) -> Job:
    """A job with one version that is ready."""
    pipeline()
    created = timezone.now() - timedelta(days=1)
    row = Job.objects.create(name=name, pipeline="flights", description="Delays of airlines.", created_at=created)
    add_version(row, 1, **{"created_at": created, **(version or {})})
    return row


def add_version(to: Job, number: int, **changes: Any) -> JobVersion:
    fields = {"parallelism": 2, "params": PARAMS, "settings": settings(), "state": "ready", "graph": GRAPH, **changes}
    return JobVersion.objects.create(job=to, number=number, **fields)


def run(
    of: Job, state: str = "running", *, began_ago: timedelta = LASTED, ended_ago: timedelta = ENDED_AGO, **changes: Any
) -> Run:
    now = timezone.now()
    started = now - began_ago
    ended = now - ended_ago if state in ("finished", "stopped", "canceled", "failed") else None
    version = changes.pop("version", None) or of.versions.get(number=1)
    owner = "" if ended or state == "queued" else f"host-1:{4711 + Run.objects.count()}:0badcafe"
    fields = {"parallelism": version.parallelism, "created_at": started - timedelta(seconds=1.2),
              "started_at": started, "ended_at": ended,
              "live": live(), "live_at": ended or now, "token": 401 + 10 * Run.objects.count(),
              "lease_owner": owner}  # fmt: skip
    return Run.objects.create(job=of, version=version, state=state, **{**fields, **changes})


#: Ends of the steps of a launch, in seconds since the attempt began. They lie within the 4 s to the first record.
LAUNCH_S = {"listed": 0.4, "opened": 2.3, "connected": 3.2, "deployed": 3.8}
#: The same of a restart: it waits for a process on another host, and its records flow 8 s after the failure.
RELAUNCH_S = {"listed": 0.3, "opened": 0.6, "connected": 4.9, "deployed": 5.8}


def attempts(of: Run, story: Story | None = None) -> None:
    """The attempts of a run: one that failed if the story has it, and one that ends with the run."""
    story = story or story_of(of)
    began = of.started_at or story.present
    if story.failed_at is not None:
        slot_log = f"/scratch/{application(of)}/{_LOST_EXECUTOR}/stderr on host-2"
        Attempt.objects.create(
            run=of, token=of.token - 1, started_at=began, ended_at=story.failed_at, outcome="failed",
            reason=LOST, detail={**LOST_SLOT, "slot_log": slot_log}, restored_checkpoint=of.restore_checkpoint,
            launch=_launch(began, LAUNCH_S),
        )  # fmt: skip
        began = story.failed_at + RESTART_DELAY
    outcome = {"finished": "ended", "failed": "failed", "restarting": ""}.get(of.state, "running")
    launch = _launch(began, RELAUNCH_S if story.failed_at else LAUNCH_S)
    is_deployed = launch["deployed"] <= story.present.timestamp() * 1000
    Attempt.objects.create(
        run=of, token=of.token, started_at=began, ended_at=of.ended_at, outcome=outcome,
        reason=of.failure["message"] if of.failure else "",
        restored_checkpoint=None if story.failed_at else of.restore_checkpoint,
        launch=launch if is_deployed else None,
    )  # fmt: skip


def _launch(began: datetime, seconds: dict[str, float]) -> dict[str, int]:
    return {step: int((began.timestamp() + end_s) * 1000) for step, end_s in seconds.items()}


def _operator(
    uid: str,
    state_bytes: int,
    start_delay_ms: float,
    alignment_ms: float,
    sync_ms: float,
    async_ms: float,
    written_bytes: int = 512,
) -> dict[str, Any]:
    phases = {"start_delay_ms": start_delay_ms, "alignment_ms": alignment_ms, "sync_ms": sync_ms, "async_ms": async_ms}
    longest = {f"max_{phase}": ms for phase, ms in phases.items()}
    return {"uid": uid, "finished": "running", "subtasks": 2, "state_bytes": state_bytes,
            "written_bytes": written_bytes, "has_state": state_bytes > 0, **longest,
            "slowest": {"subtask": 1, **phases}}  # fmt: skip


def acknowledgements(*missing: str, of: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The acknowledgements of a checkpoint with the operators `of`, without the subtasks of the `missing` operators.

    The barrier of subtask 0 comes 2 ms earlier than that of subtask 1.
    """
    columns: dict[str, Any] = {}
    for operator in of or OPERATORS:
        uid, phases = operator["uid"], ("start_delay", "alignment", "pre_barrier", "sync", "async")
        if operator["finished"] == "finished":
            continue
        times = [operator[f"max_{phase}_ms"] for phase in phases if phase != "pre_barrier"]
        here = uid not in missing
        columns[uid] = {
            "index": [0, 1],
            "at_ms": [round(sum(times)) - 2, round(sum(times))] if here else [None, None],
            **{f"{phase}_ms": [operator.get(f"max_{phase}_ms", 0.0)] * 2 if here else [None] * 2 for phase in phases},
            "start_delay_ms": [times[0] - 2.0, times[0]] if here else [None, None],
            "written_bytes": [operator["written_bytes"] // 2] * 2 if here else [None] * 2,
            "state_bytes": [operator["state_bytes"] // 2] * 2 if here else [None] * 2,
        }
    return columns


#: Positions of sources and output of sinks are lists in the manifest, without a size of their own.
OPERATORS = [
    {**_operator("flights", 0, 4.0, 0.0, 1.2, 14.0, 0), "has_state": True},
    _operator("prepared", 0, 5.4, 0.0, 0.4, 2.0, 0),
    {
        **_operator("airlines", 0, 0.0, 0.0, 0.0, 0.0, 0),
        "finished": "finished",
        "subtasks": 1,
        "slowest": None,
    },
    _operator("join", 1_904, 6.1, 21.0, 0.8, 9.0),
    _operator("window", 1_254_112, 28.0, 48.0, 6.4, 161.0, 84_263),
    {**_operator("parquet", 0, 83.0, 3.0, 22.0, 11.0, 0), "has_state": True},
]
WRITTEN_BYTES = sum(row["written_bytes"] for row in OPERATORS)  #: of a checkpoint


#: Figures of the window operator after a drain: all its sessions have ended.
_FIRED = {"state_bytes": 0, "has_state": False}
_ALIGNMENT_SHARE = 0.03  #: of the wait of a barrier: the subtasks of the join do not send it at the same time


def grown(of: Run, at: datetime) -> float:
    """The share of the usual sessions that are open: a run without a snapshot begins without one."""
    if of.restore_checkpoint or of.started_at is None:
        return 1.0
    return max(0.0, min((at - of.started_at - DEPLOYMENT) / SESSION, 1.0))


def operators_of(checkpoint: Taken) -> list[dict[str, Any]]:
    """The figures by operator of a checkpoint. Its barriers wait before the join, and all behind it wait for them."""
    calm_ms = (checkpoint.took_ms or 0) - checkpoint.wait_ms
    load, jitter = calm_ms / 345, 0.8 + calm_ms * 37 % 101 / 250
    figures: list[dict[str, Any]] = []
    for row in OPERATORS:
        waits = checkpoint.wait_ms if row["uid"] in ("join", "window") else 0.0
        split = _ALIGNMENT_SHARE if row["uid"] == "window" else 0.0
        delay_ms = row["max_start_delay_ms"] + waits * (1 - split)
        if row["uid"] == "parquet":  # the window sends the barrier when it has copied its state
            delay_ms = sum(figures[-1][f"max_{phase}_ms"] for phase in ("start_delay", "alignment", "sync")) + 0.6
        phases = {
            "start_delay_ms": delay_ms,
            "alignment_ms": row["max_alignment_ms"] * jitter + waits * split,
            "sync_ms": row["max_sync_ms"] * jitter,
            "async_ms": row["max_async_ms"] * load,
        }
        longest = {f"max_{phase}": ms for phase, ms in phases.items()}
        figures.append({**row, **longest, "slowest": row["slowest"] and {**row["slowest"], **phases}})
    return figures


def self_contained(operators: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures by operator of a savepoint: it shares no file with a checkpoint."""
    return [{**row, "written_bytes": row["state_bytes"]} for row in operators]


def checkpoint(
    of: Run, number: int, kind: str = "checkpoint", status: str = "completed", *, is_stored: bool = True, **changes: Any
) -> Checkpoint:
    row = _unsaved_checkpoint(of, number, kind, status, **changes)
    row.save()
    if status == "completed" and is_stored:
        store(row)
    return row


def _unsaved_checkpoint(of: Run, number: int, kind: str, status: str, **changes: Any) -> Checkpoint:
    triggered = changes.pop("triggered_at", timezone.now() - timedelta(seconds=5))
    duration_ms = changes.pop("duration_ms", 312 if status == "completed" else None)
    is_completed = status == "completed"
    operators = OPERATORS if kind == "checkpoint" else self_contained(OPERATORS)
    fields: dict[str, Any] = {
        "token": of.token,
        "triggered_at": triggered,
        "completed_at": triggered + timedelta(milliseconds=duration_ms or 0) if is_completed else None,
        "duration_ms": duration_ms,
        "size_bytes": STATE_BYTES if is_completed else None,
        "written_bytes": sum(row["written_bytes"] for row in operators) if is_completed else None,
        "acknowledged": 10 if is_completed else 6,
        "subtasks": 10,
        "path": folder_of(CheckpointKind(kind), number, of.token) if is_completed else "",
        "operators": operators if is_completed else [],
        "finished_operators": ["airlines"] if is_completed else [],
        "acknowledgements": acknowledgements(of=operators) if is_completed else acknowledgements("window", "parquet"),
    }
    return Checkpoint(job=of.job, run=of, number=number, kind=kind, status=status, **{**fields, **changes})


def state_query_request() -> dict[str, Any]:
    """The request of the open sessions of an airline."""
    return {"kind": "rows", "operator": "window", "state": "state", "key": {"carrier": CARRIER}, "cursor": {}}


def state_query(of: Checkpoint, state: str = "succeeded", **changes: Any) -> StateQuery:
    """A page of rows, or one that is under way."""
    now = timezone.now()
    requested = changes.pop("created_at", now - timedelta(seconds=20))
    fields: dict[str, Any] = {"request": state_query_request(), "created_at": requested}
    if state == "succeeded":
        watermark_ms = round(of.triggered_at.timestamp() * 1_000) - story_of(of.run).lag_ms(of.triggered_at)
        fields |= {"result": table(watermark_ms), "ended_at": requested + timedelta(seconds=17)}
    if state == "running":
        fields |= {"progress": {"phase": "reading", "tasks": 8, "tasks_done": 3}, "beat_at": now}
    return StateQuery.objects.create(checkpoint=of, state=state, **{**fields, **changes})


def history(of: Run, upto: int = 214, story: Story | None = None, first_number: int = 1) -> list[Checkpoint]:
    """The first checkpoint of a run and those of its story, with savepoints. A drained run ends with number `upto`.

    The newest `RETAINED` are in storage and share files, and the savepoints. The second attempt restored the newest
    one before the failure.
    """
    story = story or story_of(of)
    began = of.started_at or story.present
    first = _unsaved_checkpoint(
        of, first_number, "checkpoint", "completed", token=of.token - (story.failed_at is not None),
        triggered_at=began + FIRST_CHECKPOINT, duration_ms=400, discarded_at=began + timedelta(minutes=1),
        **_state_at(of, began + FIRST_CHECKPOINT, OPERATORS),
    )  # fmt: skip
    checkpoints = [first]
    entries = list(story.checkpoints())
    savepoints = (upto - 40, upto - 6)
    periodic = [number for number, each in enumerate(entries, upto - len(entries) + 1)
                if each.status == "completed" and number not in savepoints]  # fmt: skip
    retained_numbers = periodic[-RETAINED:]
    for number, each in enumerate(entries, upto - len(entries) + 1):
        is_first = story.resumed_at is not None and each.at < story.resumed_at
        missing = ("join", "window", "parquet") if story.sickness(each.at) else ("window", "parquet")
        fields: dict[str, Any] = {"token": of.token - is_first, "triggered_at": each.at, "duration_ms": each.took_ms}
        kind = "savepoint" if number in savepoints or each.reason == "expired" else "checkpoint"
        if each.status == "failed":
            fields |= {"reason": each.reason, "completed_at": each.at + timedelta(milliseconds=each.took_ms or 0),
                       "detail": LATE if each.reason == "expired" else "slot 1 was lost"}  # fmt: skip
        elif each.took_ms is not None:
            operators = operators_of(each)
            operators = operators if kind == "checkpoint" else self_contained(operators)
            fields |= {"operators": operators, "acknowledgements": acknowledgements(of=operators)}
            if kind == "checkpoint" and number not in retained_numbers:
                fields |= {"discarded_at": each.at + timedelta(minutes=1)}
        elif of.state == "finished":
            operators = self_contained([*OPERATORS[:4], {**OPERATORS[4], **_FIRED}, *OPERATORS[5:]])
            size = sum(operator["state_bytes"] for operator in operators)
            fields = {"status": "completed", "triggered_at": each.at - timedelta(milliseconds=400),
                      "operators": [{**operator, "finished": "finished"} for operator in operators],
                      "acknowledgements": acknowledgements(of=operators), "size_bytes": size, "written_bytes": size,
                      "finished_operators": [operator["uid"] for operator in operators]}  # fmt: skip
            kind = "drain"
        elif of.ended_at:
            continue
        if "operators" not in fields:
            fields |= {"acknowledgements": acknowledgements(*missing), "acknowledged": 10 - 2 * len(missing)}
        checkpoints.append(_unsaved_checkpoint(of, number, **{"kind": kind, "status": each.status, **fields}))
    Checkpoint.objects.bulk_create(checkpoints)
    for row in checkpoints:
        if row.status == "completed" and row.kind != "checkpoint":
            store(row)
    in_storage = [row for row in checkpoints if row.number in retained_numbers]
    for row in in_storage:
        store(row, base=in_storage[0])
    if story.resumed_at is not None:
        before = [row for row in checkpoints if row.status == "completed" and row.triggered_at < story.resumed_at]
        Attempt.objects.filter(run=of, token=of.token).update(restored_checkpoint=before[-1])
    return checkpoints


def _state_at(of: Run, at: datetime, operators: list[dict[str, Any]]) -> dict[str, Any]:
    share = grown(of, at)
    figures = [{**row, "state_bytes": round(row["state_bytes"] * share)} if row["uid"] == "window" else row
               for row in operators]  # fmt: skip
    return {"operators": figures, "size_bytes": sum(row["state_bytes"] for row in figures)}


def earlier_checkpoints(of: Run, story: Story | None = None) -> None:
    """The discarded checkpoints between the first one of a run and those of its story: one in each interval."""
    story = story or story_of(of)
    first, second = of.checkpoints.order_by("number")[:2]
    checkpoints = []
    for number in range(first.number + 1, second.number):
        at = second.triggered_at - (second.number - number) * INTERVAL
        entry = story.checkpoint(at)
        checkpoints.append(Checkpoint(
            job=of.job, run=of, number=number, kind="checkpoint", status="completed", token=first.token,
            triggered_at=at, completed_at=at + timedelta(milliseconds=entry.took_ms or 0), duration_ms=entry.took_ms,
            written_bytes=WRITTEN_BYTES, acknowledged=10, subtasks=10, **_state_at(of, at, operators_of(entry)),
            path=folder_of(CheckpointKind.CHECKPOINT, number, first.token),
            finished_operators=["airlines"], discarded_at=at + timedelta(minutes=1),
        ))  # fmt: skip
    Checkpoint.objects.bulk_create(checkpoints)


def operations_of(of: Run, user: User) -> None:
    """The operations that started a run and took the savepoints of its history."""
    began = of.started_at or of.created_at
    kind = "restore" if of.restore_checkpoint else "start"
    operation(of.job, kind, run=of, requested_by=user, created_at=of.created_at, started_at=of.created_at,
              ended_at=began + DEPLOYMENT, result={"run": of.pk})  # fmt: skip
    for row in of.checkpoints.exclude(kind="checkpoint").order_by("number"):
        is_done = row.status == "completed"
        ended = {"result": {"checkpoint": row.number}} if is_done else {
            "error": {"code": row.reason, "message": row.detail}}  # fmt: skip
        operation(
            of.job, row.kind, "succeeded" if is_done else "failed", run=of, requested_by=user, **ended,
            created_at=row.triggered_at - timedelta(milliseconds=200), started_at=row.triggered_at,
            ended_at=row.completed_at,
        )  # fmt: skip


def operation(of: Job, kind: str = "savepoint", state: str = "succeeded", **changes: Any) -> Operation:
    now = timezone.now()
    fields: dict[str, Any] = {"created_at": now - timedelta(seconds=44), "started_at": now - timedelta(seconds=43)}
    if state in ("succeeded", "failed"):
        fields["ended_at"] = now - timedelta(seconds=42)
    return Operation.objects.create(job=of, kind=kind, state=state, **{**fields, **changes})


def health(of: Run, level: Level, sentence: str, **changes: Any) -> JobHealth:
    """A stored verdict on the run, with a finding unless it is well."""
    now = timezone.now()
    finding = encode(Finding(rule="checkpoints-slow", sentence=sentence, level=level, since=now, act=""))
    columns: dict[str, Any] = {
        "run_id": of.pk, "run_state": of.state, "token": of.token, "level": level, "sentence": sentence, "since": now,
        "findings": [finding] if level >= Level.ATTENTION else [], "checked_at": now, **changes,
    }  # fmt: skip
    return JobHealth.objects.create(job=of.job, **columns)


def run_with_savepoint() -> Run:
    """A running job with a history, whose savepoint is under way."""
    row = run(job())
    attempts(row)
    history(row)
    operation(row.job, "savepoint", "running", run=row)
    return row


def settings(**changes: Any) -> Any:
    return msgspec.to_builtins(JobSettings(retained_checkpoints=RETAINED, **changes))
