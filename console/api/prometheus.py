"""`/metrics` in the format of Prometheus: the newest report of each run under way, and numbers of the console itself.

It needs a login or an API token.

    scrape_configs:
      - job_name: weir
        authorization: { credentials: TOKEN }     # from POST /api/v1/auth/token/
        static_configs: [{ targets: ["console:8000"] }]

The label of Weir's jobs is `job_name`, because Prometheus sets `job` itself. Counters begin again with each attempt,
which `rate()` and `increase()` take into account.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Count, Max, Min, OuterRef, Q, Subquery
from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request
from rest_framework.views import APIView

from console.alerts.models import Delivery
from console.checkpoints.models import Checkpoint, Kind, Status
from console.health.findings import Level
from console.health.verdicts import listed_verdicts
from console.jobs.models import Job, Run
from console.operations.models import ACTIVE_STATES, Operation, OperationState, Schedule
from runtime.core.job.lifecycle import TERMINAL_STATES, RunState

_Part = Mapping[str, Any]
_RECENT: Final = timedelta(hours=1)

#: Name, help, member of an operator in the live report, divisor to the base unit.
_OPERATOR_COUNTERS: Final = (
    ("weir_records_in", "Records received, in this attempt.", "records_in"),
    ("weir_records_out", "Records sent, in this attempt.", "records_out"),
    ("weir_bytes_in", "Bytes received, in this attempt.", "bytes_in"),
    ("weir_bytes_out", "Bytes sent, in this attempt.", "bytes_out"),
)
_OPERATOR_GAUGES: Final = (
    ("weir_busy_ratio", "Fraction of time spent working.", "busy", 1),
    ("weir_backpressured_ratio", "Fraction of time spent waiting for receivers.", "backpressured", 1),
    ("weir_watermark_timestamp_seconds", "Event time of the watermark.", "watermark", 1000),
    ("weir_watermark_lag_seconds", "Wall clock minus watermark.", "processing_lag_ms", 1000),
    ("weir_event_time_lag_seconds", "Newest watermark of a source minus watermark.", "event_lag_ms", 1000),
    ("weir_in_flight_bytes", "Bytes in the input queues.", "in_flight_bytes", 1),
)


class _AnyAccept(BaseContentNegotiation):
    """Ignores `Accept`: some collectors accept text or protobuf only, and no JSON of the default renderer."""

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> tuple[Any, str]:
        return renderers[0], renderers[0].media_type


@extend_schema(exclude=True)
class PrometheusMetrics(APIView):
    """The metrics of all jobs with a run under way, and the state of the newest run of each job."""

    content_negotiation_class = _AnyAccept

    def get(self, request: Request) -> HttpResponse:
        registry = CollectorRegistry()
        registry.register(_Runs())
        registry.register(_Console())
        return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


class _Runs(Collector):
    """Reads rows at each scrape, in a constant number of queries."""

    def collect(self) -> Iterator[Metric]:
        newest = Job.objects.exclude(latest_run=None).order_by("pk").values_list("name", "latest_run__state")
        states = GaugeMetricFamily("weir_run_state", "State of a job's newest run: 1.", labels=["job_name", "state"])
        for name, state in newest:
            states.add_metric([name, state], 1)
        yield states
        yield from _health()
        # A plain savepoint is no recovery point. The subquery reads one row of the index per run.
        points = Checkpoint.objects.filter(run=OuterRef("pk"), status=Status.COMPLETED, discarded_at=None)
        recovery = points.exclude(kind=Kind.SAVEPOINT).order_by("-number").values("triggered_at")[:1]
        runs = list(
            Run.objects.exclude(state__in=TERMINAL_STATES)
            .annotate(recovery_at=Subquery(recovery), attempt_count=Count("attempts"))
            .values("job__name", "live", "live_at", "recovery_at", "attempt_count")
        )
        yield from _of_runs(runs)
        yield from _of_operators(runs)
        yield from _of_slots(runs)


class _Console(Collector):
    """The console's own numbers, in five queries."""

    def collect(self) -> Iterator[Metric]:
        operations = GaugeMetricFamily(
            "weir_operations",
            "Operations that are active or were requested in the last hour.",
            labels=["kind", "state"],
        )
        recent = Q(state__in=ACTIVE_STATES) | Q(created_at__gte=timezone.now() - _RECENT)
        counted = Operation.objects.filter(recent).order_by().values_list("kind", "state").annotate(Count("pk"))
        _add(operations, (([kind, state], number) for kind, state, number in counted))
        yield operations
        queued = Operation.objects.filter(state=OperationState.QUEUED).aggregate(at=Min("created_at"))["at"]
        yield _moment("weir_operation_queued_timestamp_seconds", "Request of the oldest queued operation.", queued)
        missed = GaugeMetricFamily(
            "weir_schedule_missed_timestamp_seconds",
            "Time of a schedule at which its operation could not be requested, until a later request is accepted.",
            labels=["job_name", "operation"],
        )
        late = Schedule.objects.exclude(missed_at=None).values_list("job__name", "operation", "missed_at")
        _add(missed, (([name, operation], _timestamp(at)) for name, operation, at in late))
        yield missed
        waiting = Delivery.objects.filter(delivered_at=None, channel__is_enabled=True).aggregate(at=Min("created_at"))
        yield _moment("weir_alert_waiting_timestamp_seconds", "Time of the oldest alert that waits.", waiting["at"])
        passed = Run.objects.exclude(state__in=TERMINAL_STATES).aggregate(at=Max("observed_at"))["at"]
        yield _moment(
            "weir_reconciler_pass_timestamp_seconds", "Newest pass of the reconciler over a run under way.", passed
        )


def _moment(name: str, about: str, at: datetime | None) -> Metric:
    family = GaugeMetricFamily(name, about)
    _add(family, [([], _timestamp(at))])
    return family


def _health() -> Iterator[Metric]:
    """The verdicts on runs that have not ended, and on failed runs until the next run or the archive.

    An alert on the level would clear if a job that fails for good lost its sample. The verdict of an ended run is
    final: its time would look like housekeeping that stands still.
    """
    levels = GaugeMetricFamily(
        "weir_health_level",
        "Health of a job: 1 is well, 2 needs attention, 3 is failing. No sample: it is unknown.",
        labels=["job_name"],
    )
    checked = GaugeMetricFamily(
        "weir_health_checked_timestamp_seconds", "Time of the verdict on a run under way.", labels=["job_name"]
    )
    rules = GaugeMetricFamily("weir_health_finding", "A rule that a job breaks now: 1.", labels=["job_name", "rule"])
    silent = GaugeMetricFamily(
        "weir_input_silent_since_timestamp_seconds",
        "Since when a source has sent no records. No sample while it sends some.",
        labels=["job_name", "operator"],
    )
    is_under_way = ~Q(latest_run__state__in=TERMINAL_STATES)
    is_failed = Q(latest_run__state=RunState.FAILED, archived_at=None)
    rows = Job.objects.exclude(latest_run=None).filter(is_under_way | is_failed).order_by("pk")
    jobs = list(rows.select_related("health", "latest_run").defer("latest_run__live", "latest_run__failure"))
    verdicts = listed_verdicts([(job.latest_run, getattr(job, "health", None)) for job in jobs], timezone.now())
    for job, verdict in zip(jobs, verdicts, strict=True):
        name = [job.name]
        if verdict.is_known and verdict.level is not Level.NONE:
            levels.add_metric(name, verdict.level)
        if verdict.checked_at and RunState(verdict.state) not in TERMINAL_STATES:
            checked.add_metric(name, verdict.checked_at.timestamp())
        for rule in {finding.rule for finding in verdict.findings}:
            rules.add_metric([*name, rule], 1)
        for source in verdict.silent_inputs:
            silent.add_metric([*name, source.operator], source.since.timestamp())
    yield silent
    yield levels
    yield checked
    yield rules


def _of_runs(runs: Iterable[_Part]) -> Iterator[Metric]:
    for kind, name, about, value in _RUN_METRICS:
        family = kind(name, about, labels=["job_name"])
        _add(family, (([run["job__name"]], value(run)) for run in runs))
        yield family
    phases = GaugeMetricFamily(
        "weir_checkpoint_phase_seconds",
        "Longest of each phase of the newest checkpoint, over its subtasks.",
        labels=["job_name", "phase"],
    )
    for run in runs:
        durations_ms = _checkpoint(run, "phases") or {}
        _add(phases, (([run["job__name"], phase], _scaled(took_ms, 1000)) for phase, took_ms in durations_ms.items()))
    yield phases


def _of_operators(runs: Iterable[_Part]) -> Iterator[Metric]:
    labels = ["job_name", "operator"]
    operators = [([run["job__name"], uid], numbers) for run in runs for uid, numbers in _part(run, "operators").items()]
    for name, about, member in _OPERATOR_COUNTERS:
        family: Metric = CounterMetricFamily(name, about, labels=labels)
        _add(family, ((values, numbers.get(member)) for values, numbers in operators))
        yield family
    for name, about, member, divisor in _OPERATOR_GAUGES:
        family = GaugeMetricFamily(name, about, labels=labels)
        _add(family, ((values, _scaled(numbers.get(member), divisor)) for values, numbers in operators))
        yield family
    idle = GaugeMetricFamily("weir_idle_ratio", "Fraction of time spent waiting for input.", labels=labels)
    _add(
        idle,
        (
            (values, max(0.0, 1 - numbers.get("busy", 0) - numbers.get("backpressured", 0)))
            for values, numbers in operators
        ),
    )
    yield idle
    state = GaugeMetricFamily("weir_state_bytes", "State in the newest checkpoint.", labels=labels)
    for run in runs:
        _add(state, (([run["job__name"], uid], nbytes) for uid, nbytes in _part(run, "state_bytes").items()))
    yield state


def _of_slots(runs: Iterable[_Part]) -> Iterator[Metric]:
    labels = ["job_name", "slot"]
    slots = [
        ([run["job__name"], str(slot["index"])], slot) for run in runs for slot in (run["live"] or {}).get("slots", ())
    ]
    cpu = CounterMetricFamily("weir_slot_cpu_seconds", "Processor time of the slot's process.", labels=labels)
    _add(cpu, ((values, _scaled(slot.get("cpu_ms"), 1000)) for values, slot in slots))
    yield cpu
    memory = GaugeMetricFamily("weir_slot_memory_bytes", "Resident memory of the slot's process.", labels=labels)
    _add(memory, ((values, slot.get("memory_bytes")) for values, slot in slots))
    yield memory


def _add(family: Any, samples: Iterable[tuple[list[str], Any]]) -> None:
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)


def _part(run: _Part, name: str) -> _Part:
    return (run["live"] or {}).get(name) or {}


def _checkpoint(run: _Part, member: str) -> Any:
    return _part(run, "checkpoints").get(member)


def _scaled(value: float | None, divisor: int) -> float | None:
    return None if value is None else value / divisor


def _timestamp(at: Any) -> float | None:
    return None if at is None else at.timestamp()


#: Kind, name, help, value of a run.
_RUN_METRICS: Final[Sequence[tuple[Any, str, str, Callable[[_Part], Any]]]] = (
    (GaugeMetricFamily, "weir_live_report_timestamp_seconds", "Time of the newest live report.",
     lambda run: _timestamp(run["live_at"])),
    (GaugeMetricFamily, "weir_last_recovery_point_timestamp_seconds",
     "Trigger of the newest completed checkpoint, to which a failure goes back.",
     lambda run: _timestamp(run["recovery_at"])),
    (CounterMetricFamily, "weir_restarts", "Restarts of the run.", lambda run: max(0, run["attempt_count"] - 1)),
    (CounterMetricFamily, "weir_checkpoints_completed", "Completed checkpoints, in this attempt.",
     lambda run: _checkpoint(run, "completed")),
    (CounterMetricFamily, "weir_checkpoints_failed", "Failed checkpoints, in this attempt.",
     lambda run: _checkpoint(run, "failed")),
    (GaugeMetricFamily, "weir_checkpoint_duration_seconds", "Duration of the newest checkpoint.",
     lambda run: _scaled(_checkpoint(run, "duration_ms"), 1000)),
    (GaugeMetricFamily, "weir_checkpoint_written_bytes", "Bytes written for the newest checkpoint.",
     lambda run: _checkpoint(run, "written_bytes")),
)  # fmt: skip
