"""Collects the facts of runs: the same queries for one run as for a page of them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from django.conf import settings

from console.checkpoints.models import NOT_FAILURES
from console.health.facts import (
    CheckpointFacts,
    CompletedCheckpoint,
    FailedAttempt,
    FailedSavepoint,
    OperatorFacts,
    RunFacts,
    StageFacts,
    SubtaskFacts,
)
from console.health.hours import Hours, fetch, read_hours
from console.health.rules.attempts import MAX_ATTEMPTS
from console.health.rules.checkpoints import MAX_COUNTED_FAILURES
from console.health.rules.workers import MAX_NAMED
from console.jobs.models import Pipeline, Run, StageState, StandingStage
from console.jobs.operator_names import operator_names
from console.metrics import live
from console.metrics.live import Live
from console.metrics.models import FINEST_STEP_S, WHOLE_RUN
from runtime.core.job.graph import Role
from runtime.core.job.lifecycle import TERMINAL_STATES, RunState
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.redaction import redact_json

FLOW_WINDOW: Final = timedelta(seconds=35)
WATERMARK_WINDOW: Final = timedelta(seconds=75)
_STEP: Final = timedelta(seconds=FINEST_STEP_S)
_RECENT: Final = 5  #: completed checkpoints whose durations count

_PAST: Final = """
SELECT r.id, attempts.*, newest.id, newest.number, newest.completed_at, newest.duration_ms, newest.operators,
    recent.durations, failed.*, begun.*, saved.*, lost.ended_at
FROM weir_run r
LEFT JOIN LATERAL (
    SELECT outcome, ended_at FROM weir_attempt WHERE run_id = r.id ORDER BY token DESC LIMIT 1
) AS lost ON lost.outcome = 'lost'
LEFT JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_array(extract(epoch FROM ended_at), reason, detail)) FROM (
        SELECT ended_at, reason, detail FROM weir_attempt
        WHERE run_id = r.id AND outcome = 'failed' AND ended_at >= %(now)s - interval '1 hour'
        ORDER BY token DESC LIMIT %(attempts)s) AS failures
) AS attempts ON true
LEFT JOIN LATERAL (
    SELECT (array_agg(id))[1] AS id, array_agg(duration_ms) FILTER (WHERE duration_ms IS NOT NULL) AS durations FROM (
        SELECT id, duration_ms FROM weir_checkpoint
        WHERE run_id = r.id AND status = 'completed' AND discarded_at IS NULL AND kind = 'checkpoint'
        ORDER BY number DESC LIMIT %(recent)s) AS kept
) AS recent ON true
LEFT JOIN weir_checkpoint AS newest ON newest.id = recent.id
LEFT JOIN LATERAL (
    SELECT count(*), (array_agg(id))[1], (array_agg(number))[1], (array_agg(reason))[1], (array_agg(detail))[1]
    FROM (
        SELECT id, number, reason, detail FROM weir_checkpoint
        WHERE run_id = r.id AND status = 'failed' AND kind = 'checkpoint' AND reason <> ALL(%(not_failures)s)
            AND number > coalesce(newest.number, 0)
        ORDER BY number DESC LIMIT %(failures)s) AS failures
) AS failed ON true
LEFT JOIN LATERAL (
    SELECT triggered_at, acknowledged, subtasks FROM weir_checkpoint
    WHERE run_id = r.id AND status = 'in_progress' AND token = r.token AND kind = 'checkpoint'
    ORDER BY number DESC LIMIT 1
) AS begun ON true
LEFT JOIN LATERAL (
    SELECT id, number, triggered_at, reason, detail FROM (
        SELECT id, number, triggered_at, status, reason, detail FROM weir_checkpoint
        WHERE job_id = r.job_id AND run_id = r.id AND kind <> 'checkpoint'
            AND (status = 'completed' OR status = 'failed' AND reason <> ALL(%(not_failures)s))
        ORDER BY number DESC LIMIT 1) AS newest_savepoint
    WHERE status = 'failed'
) AS saved ON true
WHERE r.id = ANY(%(runs)s)
"""
#: The first moment is a constant: Postgres plans only the partitions that may hold such rows, not all of them.
_SUBTASKS: Final = """
SELECT r.id, newest.at, newest.operators FROM weir_run r CROSS JOIN LATERAL (
    SELECT at, operators FROM weir_subtask_metrics
    WHERE run_id = r.id AND token = r.token AND at >= %(since)s ORDER BY at DESC LIMIT %(samples)s
) AS newest
WHERE r.id = ANY(%(runs)s) ORDER BY r.id, newest.at
"""

#: An interval of 5 s: its begin, and per operator a list per number with an entry per subtask.
Sample = tuple[datetime, Mapping[str, Mapping[str, Sequence[Any]]]]


def collect(runs: Sequence[Run], now: datetime, lit: Mapping[int, Iterable[str]] | None = None) -> dict[int, RunFacts]:
    """The facts of `runs`, by run. Versions and jobs of the runs must be loaded. `lit`: rules found before, by run.

    Seven queries at most, whatever the number of runs.
    """
    active = [run for run in runs if not run.is_terminal]
    pks = [run.pk for run in active]
    hours, samples = read_hours(pks, _sources(active), now), _samples(pks, now)
    past = _past(active, now, {run: operators[WHOLE_RUN].checkpoint_ms for run, operators in hours.items()})
    stages = _stages([run.pk for run in active if run.version.has_standing_stages])
    places, schemas = _place_owners(runs), _schemas(runs)
    found = {}
    for run in runs:
        report = live.parse(run.live, run.live_at)
        own, (lost_at, failed, checkpoints, savepoint) = samples.get(run.pk, []), past.get(run.pk, _NO_PAST)
        failure, failed_operator = _failure(run, schemas)
        found[run.pk] = RunFacts(
            now=now,
            state=run.run_state,
            is_batch=run.version.is_batch,
            created_at=run.created_at,
            started_at=run.started_at,
            ended_at=run.ended_at,
            max_restarts=_max_restarts(run),
            failure=failure,
            failed_operator=failed_operator,
            live=report,
            lease_lost_at=_lease_lost_at(run, lost_at),
            queued_at=max(at for at in (run.created_at, run.live_at, *(f.ended_at for f in failed[:1])) if at),
            places=len(places),
            held_places=tuple(places[:MAX_NAMED]),
            checkpoints=checkpoints,
            failed_savepoint=savepoint,
            attempts=failed,
            stages=tuple(stages.get(run.pk, ())),
            operators=_operators(run, report, own, hours[run.pk]),
            sampled_at=_end(own[-1]) if own else None,
            flow_s=float(FINEST_STEP_S * len(_recent(own))),
            watermark_s=float(FINEST_STEP_S * max(len(own) - 1, 0)),
            lit=frozenset((lit or {}).get(run.pk, ())),
        )
    return found


def _sources(runs: Sequence[Run]) -> set[str]:
    graphs = [run.version.graph for run in runs if run.version.graph]
    return {operator["uid"] for graph in graphs for operator in graph["operators"] if operator["role"] == Role.SOURCE}


# ---------------------------------------------------------------- the run


def _lease_lost_at(run: Run, attempt_lost_at: datetime | None) -> datetime | None:
    """When the run lost its worker. `attempt_lost_at`: end of its newest attempt, if the reconciler took the lease.

    A lease that is expired, but still with the run, has not been renewed since the reconciler first saw it.
    """
    if run.run_state is RunState.QUEUED:
        return attempt_lost_at
    since, seen = run.observed_since, run.observed_at
    is_expired = since is not None and seen is not None and seen - since >= timedelta(seconds=settings.WEIR_LEASE_S)
    return since if is_expired and run.observed_beat == run.lease_beat else None


def _schemas(runs: Sequence[Run]) -> Mapping[str, Any]:
    """The parameter schemas of failed runs, by pipeline: they name the secrets."""
    pipelines = {run.job.pipeline for run in runs if run.run_state is RunState.FAILED}
    rows = Pipeline.objects.filter(pk__in=pipelines) if pipelines else ()
    return {pipeline.name: pipeline.schema for pipeline in rows}


def _failure(run: Run, schemas: Mapping[str, Any]) -> tuple[str, str]:
    """The message of a failed run, and the operator that failed; "" for other runs and for unknown facts."""
    if run.run_state is not RunState.FAILED:
        return "", ""
    recorded = redact_json(run.failure or {}, run.version.params, schemas.get(run.job.pipeline, {}))
    detail = recorded.get("detail")
    known = {**recorded, **detail} if isinstance(detail, dict) else recorded
    return str(recorded.get("message", "")), str(known.get("operator") or "")


def _max_restarts(run: Run) -> int | None:
    """The limit of restarts in a row; only a fixed delay between them has one."""
    given: Mapping[str, Any] = run.version.settings
    is_limited = given.get("restart_strategy", "fixed_delay") == "fixed_delay"
    return given.get("restart_attempts", FixedDelay().attempts) if is_limited else None


def _place_owners(runs: Sequence[Run]) -> list[str]:
    """Names of the jobs whose runs workers execute; not read unless a run waits for a worker."""
    if all(run.run_state is not RunState.QUEUED for run in runs):
        return []
    held = Run.objects.exclude(state__in=TERMINAL_STATES).exclude(lease_owner="").order_by("pk")
    return list(held.values_list("job__name", flat=True))


def _stages(runs: Sequence[int]) -> Mapping[int, list[StageFacts]]:
    """Standing stages without a running process, by run."""
    states = (StageState.WAITING, StageState.RESTARTING)
    rows = list(StandingStage.objects.filter(run__in=runs, state__in=states)) if runs else []
    owners = _stage_owners() if any(stage.state == StageState.WAITING for stage in rows) else ""
    found = defaultdict(list)
    for stage in rows:
        facts = StageFacts(
            operator=stage.operator,
            is_restarting=stage.state == StageState.RESTARTING,
            deaths=stage.deaths,
            reason=stage.reason,
            created_at=stage.created_at,
            owners=owners,
        )
        found[stage.run_id].append(facts)
    return found


def _stage_owners() -> str:
    """Job and operator of each claimed standing stage if WEIR_STANDING_STAGES is reached; else ""."""
    held = StandingStage.objects.exclude(lease_owner="").select_related("run__job").order_by("run", "operator")
    taken = [f"{stage.run.job.name} ({stage.operator})" for stage in held]
    return ", ".join(taken) if len(taken) >= settings.WEIR_STANDING_STAGES else ""


def _attempts(encoded: Any) -> tuple[FailedAttempt, ...]:
    """Failed attempts from an array of (end in seconds, reason, detail)."""
    found = []
    for ended_s, reason, detail in _decode(encoded) or ():
        known = detail or {}
        next_ms = known.get("next_at")
        attempt = FailedAttempt(
            ended_at=datetime.fromtimestamp(float(ended_s), UTC),
            message=str(known.get("message") or reason),
            code=str(known.get("code") or ""),
            operator=str(known.get("operator") or ""),
            tries=int(known.get("tries") or 1),
            failures=known.get("failures"),
            next_at=datetime.fromtimestamp(float(next_ms) / 1000, UTC) if next_ms else None,
        )
        found.append(attempt)
    return tuple(found)


# ---------------------------------------------------------------- checkpoints and attempts


#: End of the newest attempt if its lease was lost, failed attempts, checkpoints, the newest savepoint if it failed.
Past = tuple[datetime | None, tuple[FailedAttempt, ...], CheckpointFacts, FailedSavepoint | None]
_NO_PAST: Final[Past] = (None, (), CheckpointFacts(), None)


def _past(runs: Sequence[Run], now: datetime, earlier_ms: Mapping[int, float | None]) -> Mapping[int, Past]:
    """Attempts and checkpoints, by run. Runs in BATCH take no checkpoints."""
    settings_of = {run.pk: {} if run.version.is_batch else run.version.settings for run in runs}
    limits = {
        "recent": _RECENT, "failures": MAX_COUNTED_FAILURES, "attempts": MAX_ATTEMPTS,
        "not_failures": [str(reason) for reason in NOT_FAILURES],
    }  # fmt: skip
    found = {}
    for row in fetch(_PAST, list(settings_of), now=now, **limits):
        run, attempts, *newest, recent_ms, failed, pk, number, reason, detail, begun_at, done, subtasks = row[:-6]
        *saved, lost = row[-6:]
        checkpoints = CheckpointFacts(
            interval_ms=settings_of[run].get("checkpoint_interval_ms"),
            timeout_ms=settings_of[run].get("checkpoint_timeout_ms", CoordinatorSettings().timeout_ms),
            newest=_newest_checkpoint(*newest),
            recent_ms=tuple(float(ms) for ms in recent_ms or ()),
            earlier_ms=earlier_ms.get(run),
            failed=failed,
            failed_pk=pk,
            failed_number=number or 0,
            failed_reason=reason or "",
            failed_detail=detail or "",
            begun_at=begun_at,
            acknowledged=done or 0,
            subtasks=subtasks or 0,
        )
        found[run] = (lost, _attempts(attempts), checkpoints, None if saved[0] is None else FailedSavepoint(*saved))
    return found


def _newest_checkpoint(
    pk: int | None, number: int, completed_at: datetime, duration_ms: int | None, operators: Any
) -> CompletedCheckpoint | None:
    if pk is None:
        return None
    return CompletedCheckpoint(
        pk=pk,
        number=number,
        completed_at=completed_at,
        duration_ms=float(duration_ms or 0),
        operators=_decode(operators) or (),
    )


# ---------------------------------------------------------------- operators


def _samples(runs: Sequence[int], now: datetime) -> Mapping[int, list[Sample]]:
    """The newest samples of the subtasks in the current attempt of each run, oldest first.

    A job master that falls silent leaves its last samples. They show the last known state for an hour.
    """
    found = defaultdict(list)
    since = now - timedelta(hours=1)
    for run, at, operators in fetch(_SUBTASKS, runs, since=since, samples=WATERMARK_WINDOW // _STEP):
        found[run].append((at, _decode(operators)))
    return {run: _within(samples, WATERMARK_WINDOW) for run, samples in found.items()}


def _end(sample: Sample) -> datetime:
    return sample[0] + _STEP


def _within(samples: Sequence[Sample], window: timedelta) -> list[Sample]:
    """The samples of the newest `window`, which ends with the newest sample."""
    return [sample for sample in samples if sample[0] >= _end(samples[-1]) - window]


def _recent(samples: Sequence[Sample]) -> list[Sample]:
    return _within(samples, FLOW_WINDOW)


def _operators(
    run: Run, report: Live, samples: Sequence[Sample], hours: Mapping[str, Hours]
) -> dict[str, OperatorFacts]:
    """The operators of a run in STREAMING, in topological order, as the compiled graph has them."""
    if run.version.is_batch or not run.version.graph:
        return {}
    edges = [edge for edge in run.version.graph["edges"] if not edge.get("feedback")]
    names = operator_names(run.version.graph)
    found = {}
    for operator in run.version.graph["operators"]:
        uid = operator["uid"]
        shown = report.operators.get(uid)
        idle = {s.index for s in shown.subtasks if s.idle or s.state != "running"} if shown else set()
        is_source = operator["role"] == Role.SOURCE
        found[uid] = OperatorFacts(
            uid=uid,
            label=names[uid],
            role=Role(operator["role"]),
            bounded=operator.get("bounded", False),
            inputs=tuple(dict.fromkeys(edge["source"] for edge in edges if edge["target"] == uid)),
            finished=shown is not None and shown.finished,
            subtasks=_subtasks(uid, samples, _recent(samples), idle, is_source=is_source),
            state_bytes=hours[uid].state_bytes,
            lag_ms=hours[uid].lag_ms,
            sent=hours[uid].sent,
        )
    return found


def _subtasks(
    uid: str, samples: Sequence[Sample], recent: Sequence[Sample], idle: set[int], *, is_source: bool
) -> tuple[SubtaskFacts, ...]:
    flows = [operators[uid] for _, operators in recent if uid in operators]
    levels = [operators[uid] for _, operators in samples if uid in operators]
    if not flows:
        return ()
    records = "records_out" if is_source else "records_in"

    def mean(name: str, place: int) -> float:
        values: list[float] = [flow[name][place] for flow in flows if place < len(flow[name])]
        return sum(values) / len(flows)

    found = []
    for place, index in enumerate(flows[-1]["index"]):
        watermarks = [level["watermark"][place] for level in levels if place < len(level["watermark"])]
        known = [watermark for watermark in watermarks if watermark is not None]
        changed = [number for number in range(1, len(watermarks)) if watermarks[number] != watermarks[number - 1]]
        subtask = SubtaskFacts(
            index=index,
            records_per_s=mean(records, place) / FINEST_STEP_S,
            busy=mean("busy", place),
            backpressured=mean("backpressured", place),
            watermark=watermarks[-1],
            still_s=float(FINEST_STEP_S * (len(watermarks) - 1 - (changed[-1] if changed else 0))),
            advance_ms=known[-1] - known[0] if known else 0,
            idle=index in idle,
        )
        found.append(subtask)
    return tuple(found)


def _decode(encoded: Any) -> Any:
    """A value of JSONB, which a cursor returns as text."""
    return msgspec.json.decode(encoded) if isinstance(encoded, str | bytes) else encoded
