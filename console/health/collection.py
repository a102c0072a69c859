"""Collects the facts of runs: the same queries for one run as for a page of them."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.db.models import Max, prefetch_related_objects

from console.checkpoints.file_systems import low_file_systems
from console.health import hours, past
from console.health.facts import OperatorFacts, RunFacts, StageFacts, SubtaskFacts
from console.health.fetching import decode, fetch
from console.health.models import JobHealth
from console.health.rules.workers import MAX_NAMED
from console.jobs.code import other_code
from console.jobs.models import Pipeline, Run, StageState, StandingStage
from console.jobs.operator_names import operator_names
from console.metrics import live
from console.metrics.lag import clock_lag_ms
from console.metrics.live import Live
from console.metrics.models import FINEST_STEP_S, WHOLE_RUN, Metrics
from console.metrics.reads import RATE_WINDOW, Read
from runtime.access.redaction import redact_failure, redact_json
from runtime.core.job.graph import Partitioning, Role
from runtime.core.job.lifecycle import TERMINAL_STATES, RunState
from runtime.core.job.settings import JobSettings

WATERMARK_WINDOW: Final = timedelta(seconds=75)
_EXACT_SILENCE: Final = timedelta(minutes=10)
_STEP: Final = timedelta(seconds=FINEST_STEP_S)

#: The newest samples of the subtasks, oldest first, as JSON: JSONB of them takes Postgres four times as long. The first
#: moment is a constant: Postgres plans only the partitions that may hold such rows, not all of them.
_SAMPLES: Final = """
LEFT JOIN LATERAL (
    SELECT json_agg(json_build_array(at, operators) ORDER BY at)::text AS samples FROM (
        SELECT at, operators FROM weir_subtask_metrics
        WHERE run_id = r.id AND token = r.token AND at >= %(since)s ORDER BY at DESC LIMIT %(samples)s) AS newest
) AS samples ON true
"""
#: The newest numbers of the run as a whole.
_NEWEST: Final = """
LEFT JOIN LATERAL (
    SELECT processing_lag_ms, event_lag_ms FROM weir_metrics
    WHERE run_id = r.id AND step_s = %(step_s)s AND operator = %(whole_run)s AND at >= %(watched_since)s
    ORDER BY at DESC LIMIT 1
) AS newest_numbers ON true
"""
_FACTS: Final = f"""
SELECT r.id AS run, hours.hours, samples.samples, newest_numbers.*, {past.COLUMNS}
FROM weir_run r {past.JOINS} {hours.JOIN} {_SAMPLES} {_NEWEST}
WHERE r.id = ANY(%(runs)s)
"""  # noqa: S608  # parts of this package

#: An interval of 5 s: its begin, and per operator a list per number with an entry per subtask.
Sample = tuple[datetime, Mapping[str, Mapping[str, Sequence[Any]]]]


def collect(runs: Sequence[Run], now: datetime, former: Mapping[int, JobHealth] | None = None) -> dict[int, RunFacts]:
    """The facts of `runs`, by run. Versions and jobs of the runs must be loaded. `former`: the former verdict, by run.

    Eight queries at most, whatever the number of runs.
    """
    active = [run for run in runs if not run.is_terminal]
    rows = _rows(active, now)
    stages = _stages([run.pk for run in active if run.version.has_standing_stages])
    places, schemas = _place_owners(runs), _schemas(runs)
    low_disks = low_file_systems() if active else ()
    samples_of = {pk: _samples(row.get("samples")) for pk, row in rows.items()}
    last_records = _last_records(active, samples_of, now)
    facts = {}
    for run in runs:
        report, row = live.parse(run.live, run.live_at), rows.get(run.pk, {})
        samples, last_hours = samples_of.get(run.pk, []), hours.read_hours(row.get("hours"))
        history = past.read_past(row, run, last_hours[WHOLE_RUN].checkpoint_ms) if row else past.NO_PAST
        failure, failed_operator = _failure(run, schemas)
        before = (former or {}).get(run.pk)
        facts[run.pk] = RunFacts(
            now=now,
            state=run.run_state,
            is_batch=run.version.is_batch,
            created_at=run.created_at,
            started_at=run.started_at,
            ended_at=run.ended_at,
            other_code=other_code(run),
            max_restarts=_max_restarts(run),
            failure=failure,
            failed_operator=failed_operator,
            live=report,
            lease_lost_at=_lease_lost_at(run, history.lost_at),
            queued_at=max(
                at for at in (run.created_at, run.live_at, *(f.ended_at for f in history.attempts[:1])) if at
            ),
            places=len(places),
            held_places=tuple(places[: MAX_NAMED + 1]),
            checkpoints=history.checkpoints,
            failed_savepoint=history.failed_savepoint,
            failed_drill=history.failed_drill,
            change=history.change,
            missed=history.missed,
            attempts=history.attempts,
            stages=tuple(stages.get(run.pk, ())),
            operators=_operators(run, report, samples, last_hours, last_records, before, now),
            max_silence_s=run.job.max_silence_s,
            sampled_at=_end(samples[-1]) if samples else None,
            flow_s=float(FINEST_STEP_S * len(_recent(samples))),
            reads=_reads(samples, _sources([run])),
            lag_ms=clock_lag_ms(row.get("processing_lag_ms")),
            behind_newest_ms=row.get("event_lag_ms"),
            watermark_s=float(FINEST_STEP_S * max(len(samples) - 1, 0)),
            low_disks=low_disks,
            lit=frozenset(finding["rule"] for finding in before.findings) if before else frozenset(),
        )
    return facts


def _rows(runs: Sequence[Run], now: datetime) -> Mapping[int, Mapping[str, Any]]:
    """A row for each of `runs`, which have not ended. A query."""
    if not runs:
        return {}
    values = {
        "runs": [run.pk for run in runs],
        "now": now,
        "since": now - timedelta(hours=1),
        "samples": WATERMARK_WINDOW // _STEP,
        "watched_since": now - WATERMARK_WINDOW,
        "step_s": FINEST_STEP_S,
        "whole_run": WHOLE_RUN,
        **past.LIMITS,
        **hours.moments(now, _sources(runs)),
    }
    return {row["run"]: row for row in fetch(_FACTS, values)}


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
    since, until = run.observed_since, run.observed_at
    is_expired = since is not None and until is not None and until - since >= timedelta(seconds=settings.WEIR_LEASE_S)
    return since if is_expired and run.observed_beat == run.lease_beat else None


def _schemas(runs: Sequence[Run]) -> Mapping[str, Any]:
    """The parameter schemas of failed runs, by pipeline: they name the secrets. Loads the packages, too."""
    failed = [run for run in runs if run.run_state is RunState.FAILED]
    versions = [run.version for run in failed if run.version.package_id is not None]
    prefetch_related_objects(versions, "package", "job")
    pipelines = {run.job.pipeline for run in failed}
    rows = Pipeline.objects.filter(pk__in=pipelines) if pipelines else ()
    return {pipeline.name: pipeline.schema for pipeline in rows}


def _failure(run: Run, schemas: Mapping[str, Any]) -> tuple[str, str]:
    """The message of a failed run, and the operator that failed; "" for other runs and for unknown facts."""
    if run.run_state is not RunState.FAILED:
        return "", ""
    schema = run.version.parameter_schema(schemas.get(run.job.pipeline, {}))
    recorded = redact_failure(run.failure or {}, partial(redact_json, params=run.version.params, schema=schema))
    detail = recorded.get("detail")
    fields = {**recorded, **detail} if isinstance(detail, dict) else recorded
    return str(recorded.get("message", "")), str(fields.get("operator") or "")


def _max_restarts(run: Run) -> int | None:
    """The limit of restarts in a row; only a fixed delay between them has one."""
    version_settings, defaults = run.version.settings, JobSettings()
    is_limited = version_settings.get("restart_strategy", defaults.restart_strategy) == "fixed_delay"
    return version_settings.get("restart_attempts", defaults.restart_attempts) if is_limited else None


def _place_owners(runs: Sequence[Run]) -> list[str]:
    """Names of the jobs whose runs workers execute; not read unless a run waits for a worker."""
    if all(run.run_state is not RunState.QUEUED for run in runs):
        return []
    rows = Run.objects.exclude(state__in=TERMINAL_STATES).exclude(lease_owner="").order_by("pk")
    return list(rows.values_list("job__name", flat=True))


def _stages(runs: Sequence[int]) -> Mapping[int, list[StageFacts]]:
    """Standing stages without a running process, by run."""
    states = (StageState.WAITING, StageState.RESTARTING)
    rows = list(StandingStage.objects.filter(run__in=runs, state__in=states)) if runs else []
    owners = _stage_owners() if any(stage.state == StageState.WAITING for stage in rows) else ""
    stages = defaultdict(list)
    for stage in rows:
        facts = StageFacts(
            operator=stage.operator,
            is_restarting=stage.state == StageState.RESTARTING,
            deaths=stage.deaths,
            reason=stage.reason,
            created_at=stage.created_at,
            owners=owners,
        )
        stages[stage.run_id].append(facts)
    return stages


def _stage_owners() -> str:
    """Job and operator of each claimed standing stage if WEIR_STANDING_STAGES is reached; else ""."""
    rows = StandingStage.objects.exclude(lease_owner="").select_related("run__job").order_by("run", "operator")
    owners = [f"{stage.run.job.name} ({stage.operator})" for stage in rows]
    return ", ".join(owners) if len(owners) >= settings.WEIR_STANDING_STAGES else ""


# ---------------------------------------------------------------- operators


def _samples(encoded: Any) -> list[Sample]:
    """The samples of the subtasks in the current attempt, from the column `samples`.

    A job master that falls silent leaves its last samples. They show the last known state for an hour.
    """
    return _within([(datetime.fromisoformat(at), numbers) for at, numbers in decode(encoded) or ()], WATERMARK_WINDOW)


def _end(sample: Sample) -> datetime:
    return sample[0] + _STEP


def _within(samples: Sequence[Sample], window: timedelta) -> list[Sample]:
    """The samples of the newest `window`, which ends with the newest sample."""
    return [sample for sample in samples if sample[0] >= _end(samples[-1]) - window]


def _reads(samples: Sequence[Sample], sources: Collection[str]) -> tuple[Read, ...]:
    """The records that the `sources` have read in each sample."""
    reads = []
    for sample in samples:
        begin, numbers = sample
        records = sum(sum(numbers[uid]["records_out"]) for uid in sources if uid in numbers)
        reads.append(Read(begin, _end(sample), records))
    return tuple(reads)


def _recent(samples: Sequence[Sample]) -> list[Sample]:
    return _within(samples, RATE_WINDOW)


def _last_records(
    runs: Sequence[Run], samples: Mapping[int, Sequence[Sample]], now: datetime
) -> Mapping[tuple[int, str], hours.Interval]:
    """The newest interval with records, by run and by source that has sent none in all of its `samples`.

    A query, none if all sources send records. It covers `_EXACT_SILENCE`; the former verdict knows longer silence.
    """
    silent = {
        (run.pk, uid)
        for run in runs
        if samples.get(run.pk)
        for uid in _sources([run])
        if not any(_sent(sample, uid) for sample in samples[run.pk])
    }
    if not silent:
        return {}
    pks, uids = zip(*silent, strict=True)
    of_sources = Metrics.objects.filter(step_s=FINEST_STEP_S, run_id__in=set(pks), operator__in=set(uids))
    newest = of_sources.filter(at__gte=now - _EXACT_SILENCE, records_out__gt=0).order_by()
    ends = newest.values_list("run_id", "operator").annotate(newest=Max("at"))
    return {(run, uid): hours.Interval(at, at + _STEP) for run, uid, at in ends if (run, uid) in silent}


def _sent(sample: Sample, uid: str) -> int:
    """The records that the operator has sent in an interval."""
    return sum(sample[1][uid]["records_out"]) if uid in sample[1] else 0


def _silent_since(
    samples: Sequence[Sample], uid: str, earlier: hours.Interval | None, former: datetime | None, earliest: datetime
) -> datetime | None:
    """Since when the source sends no records; None while it sends some.

    Args:
        samples: the newest ones, oldest first.
        earlier: the newest interval with records, of any length, if `samples` have none; None: none within a day.
        former: since when, by the former verdict. It holds until later records: it was made when exact intervals were
            at hand.
        earliest: begin of the run or of the day, which holds without records and without a former verdict.
    """
    if not samples or _sent(samples[-1], uid):
        return None
    if with_records := [sample for sample in samples if _sent(sample, uid)]:
        return _end(with_records[-1])
    if earlier is None:
        return former or min(earliest, samples[0][0])
    since = min(earlier.end, samples[0][0])
    return min(former, since) if former and former > earlier.begin else since


def _former_silences(run: Run, former: JobHealth | None) -> Mapping[str, datetime]:
    """Since when each source has been silent, by the former verdict on this attempt."""
    if former is None or former.token != run.token:
        return {}
    return {uid: datetime.fromisoformat(since) for uid, _, since in former.silent_inputs}


def _operators(
    run: Run,
    report: Live,
    samples: Sequence[Sample],
    last_hours: Mapping[str, hours.Hours],
    last_records: Mapping[tuple[int, str], hours.Interval],
    former: JobHealth | None,
    now: datetime,
) -> dict[str, OperatorFacts]:
    """The operators of a run in STREAMING, in topological order, as the compiled graph has them."""
    if run.version.is_batch or not run.version.graph:
        return {}
    edges = [edge for edge in run.version.graph["edges"] if not edge["feedback"]]
    forward_edges = [edge for edge in edges if edge["partitioning"] == Partitioning.FORWARD]
    recent = _recent(samples)
    names = operator_names(run.version.graph)
    silences, earliest = _former_silences(run, former), max(run.started_at or run.created_at, now - hours.COVERED)
    findings = [(finding["operator"], finding["rule"]) for finding in former.findings] if former else []
    facts = {}
    for operator in run.version.graph["operators"]:
        uid = operator["uid"]
        live_operator = report.operators.get(uid)
        idle = {s.index for s in live_operator.subtasks if s.idle or s.state != "running"} if live_operator else set()
        is_source = operator["role"] == Role.SOURCE
        facts[uid] = OperatorFacts(
            uid=uid,
            label=names[uid],
            role=Role(operator["role"]),
            bounded=operator["bounded"],
            inputs=_senders(uid, edges),
            forward_inputs=_senders(uid, forward_edges),
            finished=live_operator is not None and live_operator.finished,
            subtasks=_subtasks(uid, samples, recent, idle, is_source=is_source),
            state_bytes=last_hours[uid].state_bytes,
            lag_ms=last_hours[uid].lag_ms,
            usual_per_s=last_hours[uid].usual_per_s,
            sent=last_hours[uid].sent,
            silent_since=_silent_since(
                samples, uid, last_records.get((run.pk, uid)) or last_hours[uid].last_sent, silences.get(uid), earliest
            )
            if is_source
            else None,
            lit=frozenset(rule for operator_uid, rule in findings if operator_uid == uid),
        )
    return facts


def _senders(uid: str, edges: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(edge["source"] for edge in edges if edge["target"] == uid))


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

    subtasks = []
    for place, index in enumerate(flows[-1]["index"]):
        watermarks = [level["watermark"][place] for level in levels if place < len(level["watermark"])]
        event_times = [watermark for watermark in watermarks if watermark is not None]
        changed = [number for number in range(1, len(watermarks)) if watermarks[number] != watermarks[number - 1]]
        subtask = SubtaskFacts(
            index=index,
            records_per_s=mean(records, place) / FINEST_STEP_S,
            busy=mean("busy", place),
            backpressured=mean("backpressured", place),
            watermark=watermarks[-1],
            still_s=float(FINEST_STEP_S * (len(watermarks) - 1 - (changed[-1] if changed else 0))),
            advance_ms=event_times[-1] - event_times[0] if event_times else 0,
            idle=index in idle,
        )
        subtasks.append(subtask)
    return tuple(subtasks)
