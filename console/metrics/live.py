"""The live metrics of a run as typed values. The master writes them as JSON; missing fields have defaults here."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import structlog
from msgspec import Meta

from console.jobs.models import Run
from runtime.core.job.lifecycle import FLOWING_STATES

S = TypeVar("S", bound=msgspec.Struct)

log = structlog.get_logger(__name__)


class SubtaskLive(msgspec.Struct, frozen=True, kw_only=True):
    """`idle`: no receiver waits for the watermark of the subtask."""

    index: int
    state: str = "running"
    idle: bool = False


class OperatorLive(msgspec.Struct, frozen=True, kw_only=True):
    """Rates are per second, `watermark` is event time in ms, `busy` and `backpressured` are fractions of time."""

    state: str = "running"
    records_in: int = 0
    records_out: int = 0
    rate_in: float = 0.0
    rate_out: float = 0.0
    watermark: int | None = None
    busy: float = 0.0
    backpressured: float = 0.0
    subtasks: tuple[SubtaskLive, ...] = ()
    counters: dict[str, int] = {}
    open_results: dict[str, int] = {}  #: results that are not final: windows, sessions, timers, uncommitted rows

    @property
    def finished(self) -> bool:
        return self.state == "finished"


class SlotLive(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    pid: int | None = None
    host: str = ""
    address: str = ""
    executor: str = ""
    log: str = ""
    memory_bytes: int | None = None  #: resident set size of the process
    memory_bound_bytes: int | None = None
    seen_ms_ago: float | None = None  #: at the time of the report
    seen_at: datetime | None = None  #: set by `parse`


class CheckpointLive(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    acknowledged: int = 0
    subtasks: int = 0
    kind: str = "checkpoint"


class WaitingLive(msgspec.Struct, frozen=True):
    """Numbers of slots `wanted` and available (`there`). `held_by`: the cause of the shortage, "" if unknown."""

    wanted: int
    there: int
    held_by: str = ""

    @property
    def is_over(self) -> bool:
        """Whether enough slots are available, although the run has not taken them yet."""
        return self.there >= self.wanted


class LaunchLive(msgspec.Struct, frozen=True, kw_only=True):
    """The step of a launch before the slots are deployed. `there` of `wanted` slots are connected."""

    step: Literal["spark", "slots"]
    wanted: int = 0
    there: int = 0


class EndingLive(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run waits for the commit of its output, or for the delivery of its epochs.

    `error` is that of the last commit, `undelivered` has the epochs by sink.
    """

    phase: Literal["commit", "delivery"] = "commit"
    waited_ms: float = 0.0
    error: str = ""
    undelivered: dict[str, int] = {}


class StageLive(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of the plan of a run in BATCH. Records are those of finished tasks. None: unknown so far."""

    number: int
    name: str = ""
    operators: tuple[str, ...] = ()
    state: str = ""
    tasks: int | None = None
    tasks_done: int = 0
    tasks_failed: int | None = None
    records_read: int = 0
    records_written: int = 0
    duration_ms: float | None = None

    @property
    def is_complete(self) -> bool:
        return self.state == "complete"


class BatchLive(msgspec.Struct, frozen=True, kw_only=True):
    """The stages of the plan of a run in BATCH. `tasks` sums the stages whose number of tasks is known."""

    stages: tuple[StageLive, ...] = ()
    tasks: int = 0
    tasks_done: int = 0
    tasks_failed: int = 0  #: failed task attempts

    @property
    def stages_done(self) -> int:
        return sum(stage.is_complete for stage in self.stages)

    @property
    def is_open(self) -> bool:
        """Whether more tasks may appear: Spark decides the number of tasks of a DataFrame at run time."""
        return any(stage.tasks is None for stage in self.stages)


#: By value of `core.attempt.failover_regions.RestartReason`.
RESTART_REASONS: Final = {
    "unnumbered-rows": "its rows have no numbers, as its source or a step before it may not repeat them",
    "pre-aggregation": "it aggregates rows of many batches",
    "partitioning": "a repeated row may reach another subtask",
    "loop": "they are in a loop",
}


class RegionLive(msgspec.Struct, frozen=True, kw_only=True):
    """Cause of a failover region of the first `slots` slots; see `core.attempt.failover_regions.RegionCause`."""

    slots: int
    source: str = ""
    target: str = ""
    reason: str = ""
    kept: tuple[str, ...] = ()

    @property
    def explanation(self) -> str:
        """Why the receivers of the rows cannot keep their state; "" if the edge explains it."""
        return RESTART_REASONS.get(self.reason, "")


_SET_ASIDE: Final = "set_aside."  #: prefix of counters by type of error (`runtime.operators.functions.set_aside`)


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """`at` is the time of the master's report, from its own column; `flowing` is false while no records flow."""

    operators: dict[str, OperatorLive] = {}
    slots: tuple[SlotLive, ...] = ()
    checkpoint: CheckpointLive | None = None
    counters: dict[str, int] = {}
    waiting: WaitingLive | None = None
    launch: LaunchLive | None = None
    ending: EndingLive | None = None
    batch: BatchLive | None = None
    parallelism: int | None = None
    at: datetime | None = None
    flowing: bool = True
    unreadable: tuple[str, ...] = ()  #: folders of retained checkpoints whose manifest cannot be read
    deploying_ms: float | None = None  #: since the attempt began to deploy its slots; None once all subtasks run
    undeployed_slots: tuple[int, ...] = ()  #: slots that have not deployed their subtasks
    region: RegionLive | None = None  #: the widest one; None: not reported
    sources_paused: bool = False  #: too many committed epochs await delivery
    spark_ui: Annotated[str, Meta(pattern="^(https?://.*)?$")] = ""

    @property
    def late_rows(self) -> dict[str, int]:
        """The number of late rows of each step that has had some."""
        counts = {uid: step.counters.get("late_records", 0) for uid, step in self.operators.items()}
        return {uid: count for uid, count in counts.items() if count}

    @property
    def rows_set_aside(self) -> dict[str, dict[str, int]]:
        """By step that has set rows aside in this attempt: their number by type of error, the most frequent first."""
        counts = {
            uid: {
                name.removeprefix(_SET_ASIDE): count
                for name, count in sorted(step.counters.items(), key=lambda each: (-each[1], each[0]))
                if name.startswith(_SET_ASIDE)
            }
            for uid, step in self.operators.items()
        }
        return {uid: errors for uid, errors in counts.items() if errors}

    @property
    def mean_batch_rows(self) -> float | None:
        """The mean size of micro-batches (`KeyedStream.batches`); None without a batch.

        The operator counts batches by cause (`batches_by_size`, …) and the rows of all batches (`batched_rows`).
        """
        batches = sum(value for name, value in self.counters.items() if name.startswith("batches_by_"))
        return self.counters.get("batched_rows", 0) / batches if batches else None


NO_METRICS = Live()


def parse(raw: Mapping[str, Any] | None, at: datetime | None) -> Live:
    """The metrics in `raw`, reported at the time `at`; `NO_METRICS` if `raw` is empty or malformed."""
    report = convert_report(raw, Live) if raw else None
    if report is None:
        return NO_METRICS
    return msgspec.structs.replace(report, at=at, slots=tuple(_with_time(slot, at) for slot in report.slots))


def live_metrics(run: Run | None) -> Live:
    """The live metrics of a run, as `metrics_in_mode`."""
    return NO_METRICS if run is None else metrics_in_mode(run, is_batch=run.version.is_batch)


def metrics_in_mode(run: Run, *, is_batch: bool) -> Live:
    """The live metrics of a run. While no records flow, `flowing` is false and pages show totals without rates.

    A run in BATCH reports totals only, of its finished tasks. The version of the run is not read.
    """
    report = parse(run.live, run.live_at)
    if run.run_state in FLOWING_STATES and not is_batch:
        return report
    slots = () if run.is_terminal else report.slots
    return msgspec.structs.replace(report, flowing=False, checkpoint=None, slots=slots)


def _with_time(slot: SlotLive, at: datetime | None) -> SlotLive:
    """The slot with the time of its heartbeat: a report grows old while its job master is silent."""
    if at is None or slot.seen_ms_ago is None:
        return slot
    return msgspec.structs.replace(slot, seen_at=at - timedelta(milliseconds=slot.seen_ms_ago))


def convert_report(raw: Mapping[str, Any], target: type[S]) -> S | None:
    """A report of another process; None if it has another shape, so that a bad report never breaks a page."""
    try:
        return msgspec.convert(raw, target, strict=False)
    except msgspec.ValidationError as error:
        log.warning("report-unreadable", error=str(error))
        return None
