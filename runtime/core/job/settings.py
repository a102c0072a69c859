"""The settings of a job version. Times are milliseconds.

The console validates the settings and draws the form from them; the job master passes them to the machines of the core.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from runtime.access.spark_settings import check_spark_settings
from runtime.core.job.bounds import (
    DAY_MS,
    AlignmentTimeoutMs,
    BackoffMultiplier,
    ConcurrentCheckpoints,
    DelayMs,
    FailureCount,
    InitialBackoffMs,
    IntervalMs,
    Jitter,
    MaxBackoffMs,
    PauseMs,
    ResetAfterMs,
    TimeoutMs,
    check_bounds,
)
from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.restart_strategy import ExponentialDelay, FixedDelay, NoRestart, RestartStrategy
from runtime.errors import JobRejected


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """When checkpoints are taken, and when they fail. Times are milliseconds.

    Args:
        interval_ms: from the start of a periodic checkpoint to the start of the next, 1 ms to a day. None: no periodic
            checkpoints, only those that a request or the end of the job needs.
        timeout_ms: a checkpoint that takes longer is aborted; 1 ms to a day.
        min_pause_ms: minimum pause between a completed checkpoint and the next, 0 to a day. A failed checkpoint is
            retried once without a pause.
        max_concurrent: maximum number of checkpoints in progress, 1 to 100.
        mode: AT_LEAST_ONCE: barriers block no channel, and a restart may process records again.
        tolerable_failures: more consecutive failed checkpoints than this restart the job, 0 to a million. None: failed
            checkpoints never restart it.
        alignment_timeout_ms: a barrier that has waited for longer overtakes rows, 1 ms to a day. 0: it waits.

    Raises:
        JobRejected: a value is out of bounds, or barriers could not overtake rows; the error names the field.
    """

    interval_ms: IntervalMs | None = 5_000
    timeout_ms: TimeoutMs = 60_000
    min_pause_ms: PauseMs = 500
    max_concurrent: ConcurrentCheckpoints = 1
    mode: CheckpointMode = CheckpointMode.EXACTLY_ONCE  #: for the subtasks; the coordinator does not use it
    tolerable_failures: FailureCount | None = None
    alignment_timeout_ms: AlignmentTimeoutMs = 0  #: for the subtasks; the coordinator does not use it

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.alignment_timeout_ms and self.mode is CheckpointMode.AT_LEAST_ONCE:
            detail = "at least once, no barrier waits for rows: leave it at 0"
            raise JobRejected("bad-settings", "alignment_timeout_ms", detail)
        if self.alignment_timeout_ms and self.max_concurrent > 1:
            raise JobRejected("bad-settings", "alignment_timeout_ms", "needs max_concurrent 1")
        if self.alignment_timeout_ms >= self.timeout_ms:
            detail = f"must be below timeout_ms ({self.timeout_ms}), or no barrier overtakes rows"
            raise JobRejected("bad-settings", "alignment_timeout_ms", detail)


class ExecutionMode(StrEnum):
    """The engine of a job: the barrier runtime, or a Spark batch plan (Flink: `execution.runtime-mode`)."""

    STREAMING = "streaming"
    BATCH = "batch"
    AUTOMATIC = "automatic"  #: BATCH if the job can run in BATCH


class SlotTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long a run waits for slots (Flink: `slot.request.timeout`). None: without limit."""

    request_ms: int | None = 300_000  #: for the first slots of the run
    replacement_ms: int | None = None  #: for replacements of lost slots
    start_ms: int = 120_000  #: from the start of the slots' tasks until every slot has connected


class RetentionPolicy(msgspec.Struct, frozen=True):
    """Completed checkpoints that are kept: the newest `keep`, and with `hours` those triggered within these hours.

    The hours are counted back from the trigger of the newest checkpoint.
    """

    keep: int
    hours: int | None = None


class JobSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings with their defaults. The descriptions appear in the form and in the API schema."""

    execution_mode: Annotated[
        ExecutionMode,
        Meta(
            description="Streaming takes checkpoints; batch runs a bounded job as a Spark plan; automatic is "
            "batch where every source is bounded and batch has every step."
        ),
    ] = ExecutionMode.STREAMING
    checkpoint_mode: Annotated[
        CheckpointMode,
        Meta(description="At least once: barriers block no channel, and a restart may process records again."),
    ] = CheckpointMode.EXACTLY_ONCE
    checkpoint_interval_ms: Annotated[
        int, Meta(ge=100, le=DAY_MS, description="From the start of one checkpoint to the start of the next.")
    ] = 5000
    checkpoint_timeout_ms: Annotated[
        int, Meta(ge=1000, le=DAY_MS, description="A checkpoint that takes longer is aborted.")
    ] = 60_000
    min_pause_ms: Annotated[
        PauseMs,
        Meta(
            description="Minimum pause between a completed checkpoint and the next. "
            "A failed checkpoint is retried once without a pause.",
        ),
    ] = 500
    max_concurrent_checkpoints: Annotated[ConcurrentCheckpoints, Meta(description="Most checkpoints in progress.")] = 1
    alignment_timeout_ms: Annotated[
        AlignmentTimeoutMs,
        Meta(
            description="A barrier that has waited for longer overtakes the rows before steps that are partitioned by "
            "key: the rows become part of the checkpoint. 0: it waits. Needs exactly once, one checkpoint at a time."
        ),
    ] = 0
    tolerable_failed_checkpoints: Annotated[
        FailureCount | None,
        Meta(description="More consecutive failures restart the job. Empty: failures never restart it."),
    ] = None
    retained_checkpoints: Annotated[
        int, Meta(ge=1, le=1000, description="Completed checkpoints that are kept; savepoints are always kept.")
    ] = 5
    retained_hours: Annotated[
        Annotated[int, Meta(ge=1, le=8760)] | None,
        Meta(
            description="Checkpoints of the last hours before the newest are kept too, if they are among the newest "
            "1,000. Empty: age keeps none."
        ),
    ] = None
    restart_strategy: Annotated[
        Literal["none", "fixed_delay", "exponential_delay"],
        Meta(
            description="After a failure: no restart, a fixed delay with a limit of attempts, or ever longer delays "
            "without a limit. A completed checkpoint resets the count of failures."
        ),
    ] = "exponential_delay"
    restart_attempts: Annotated[
        FailureCount,
        Meta(description="Fixed delay: restarts in a row without a completed checkpoint before the run fails."),
    ] = 10
    restart_delay_ms: Annotated[DelayMs, Meta(description="Fixed delay: the delay before each new attempt.")] = 1000
    restart_initial_backoff_ms: Annotated[
        InitialBackoffMs, Meta(description="Exponential delay: the delay after the first failure.")
    ] = 1000
    restart_max_backoff_ms: Annotated[MaxBackoffMs, Meta(description="Exponential delay: the longest delay.")] = 60_000
    restart_backoff_multiplier: Annotated[
        BackoffMultiplier,
        Meta(description="Exponential delay: each consecutive failure multiplies the delay by this."),
    ] = 1.5
    restart_reset_after_ms: Annotated[
        ResetAfterMs,
        Meta(description="Exponential delay: running this long without a failure resets the delay too."),
    ] = 3_600_000
    restart_jitter: Annotated[
        Jitter, Meta(description="Exponential delay: largest random change, as a fraction of the delay.")
    ] = 0.1
    on_corrupt_checkpoint: Annotated[
        Literal["fail", "previous"],
        Meta(
            description="If the newest checkpoint cannot be read: fail and name the previous one, or restore it. "
            "The latter repeats output committed since: no longer exactly once."
        ),
    ] = "fail"
    fallback_limit_ms: Annotated[
        Annotated[int, Meta(ge=1000, le=31_536_000_000)] | None,
        Meta(
            description="Greatest age of the previous checkpoint that is restored so. If it is older, the run fails "
            "and names it. Empty: no limit."
        ),
    ] = None
    heartbeat_timeout_ms: Annotated[
        int, Meta(ge=1000, le=3_600_000, description="A slot without a heartbeat for this long counts as lost.")
    ] = 10_000
    slot_request_timeout_ms: Annotated[
        int, Meta(ge=1000, le=604_800_000, description="A new run fails if it has waited this long for free slots.")
    ] = 300_000
    slot_replacement_timeout_ms: Annotated[
        Annotated[int, Meta(ge=1000, le=604_800_000)] | None,
        Meta(description="A run that has lost slots fails if it waits this long for new ones. Empty: no limit."),
    ] = None
    slot_start_timeout_ms: Annotated[
        int,
        Meta(ge=1000, le=3_600_000, description="From the start of the Spark tasks until every slot has connected."),
    ] = 120_000
    slot_memory_mb: Annotated[
        Annotated[int, Meta(ge=256, le=1_048_576)] | None,
        Meta(
            description="A slot whose process uses more memory fails with an error that names it, before its host runs "
            "out of memory. At least 256; not in batch. Empty: no bound."
        ),
    ] = None
    spare_slots: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Processes that stand by beside the slots, and take over a lost slot at once. Each needs a "
            "core. Not in batch.",
        ),
    ] = 0
    spark: Annotated[
        dict[str, str],
        Meta(description="Settings of the run's Spark application by name, such as spark.executor.memory: 2g."),
    ] = {}

    def __post_init__(self) -> None:
        """Raises ValueError if settings contradict each other."""
        if self.restart_max_backoff_ms < self.restart_initial_backoff_ms:
            raise ValueError("`restart_max_backoff_ms` must not be below `restart_initial_backoff_ms`")
        if self.alignment_timeout_ms and self.checkpoint_mode is CheckpointMode.AT_LEAST_ONCE:
            raise ValueError(
                "`alignment_timeout_ms` needs the mode exactly once: at least once no barrier waits for rows"
            )
        if self.alignment_timeout_ms and self.max_concurrent_checkpoints > 1:
            raise ValueError("`alignment_timeout_ms` needs `max_concurrent_checkpoints` 1")
        if self.alignment_timeout_ms >= self.checkpoint_timeout_ms:
            raise ValueError(
                "`alignment_timeout_ms` must be below `checkpoint_timeout_ms`, or no barrier overtakes rows"
            )
        check_spark_settings(self.spark, for_slots=self.execution_mode is not ExecutionMode.BATCH)

    @property
    def coordinator(self) -> CoordinatorSettings:
        return CoordinatorSettings(
            interval_ms=self.checkpoint_interval_ms,
            timeout_ms=self.checkpoint_timeout_ms,
            min_pause_ms=self.min_pause_ms,
            max_concurrent=self.max_concurrent_checkpoints,
            mode=self.checkpoint_mode,
            tolerable_failures=self.tolerable_failed_checkpoints,
            alignment_timeout_ms=self.alignment_timeout_ms,
        )

    @property
    def retention(self) -> RetentionPolicy:
        return RetentionPolicy(self.retained_checkpoints, self.retained_hours)

    @property
    def slot_memory_bytes(self) -> int | None:
        return None if self.slot_memory_mb is None else self.slot_memory_mb << 20

    @property
    def slots(self) -> SlotTimeouts:
        return SlotTimeouts(
            request_ms=self.slot_request_timeout_ms,
            replacement_ms=self.slot_replacement_timeout_ms,
            start_ms=self.slot_start_timeout_ms,
        )

    @property
    def restart(self) -> RestartStrategy:
        match self.restart_strategy:
            case "none":
                return NoRestart()
            case "fixed_delay":
                return FixedDelay(attempts=self.restart_attempts, delay_ms=self.restart_delay_ms)
            case "exponential_delay":
                return ExponentialDelay(
                    initial_ms=self.restart_initial_backoff_ms,
                    max_ms=self.restart_max_backoff_ms,
                    multiplier=self.restart_backoff_multiplier,
                    reset_after_ms=self.restart_reset_after_ms,
                    jitter=self.restart_jitter,
                )
