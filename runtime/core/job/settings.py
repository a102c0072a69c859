"""The settings of a job version: how often it checkpoints, how patient it is. Times are milliseconds.

One value for three readers: the console checks what people type and draws the form, the job master obeys. What a
setting does is decided by the machines that it is handed to.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.restart_strategy import ExponentialDelay, FixedDelay, NoRestart, RestartStrategy
from runtime.spark_settings import check_spark_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Times in milliseconds."""

    interval_ms: int | None = 5_000  #: None: no periodic checkpoints
    timeout_ms: int = 60_000
    min_pause_ms: int = 500
    max_concurrent: int = 1
    mode: CheckpointMode = CheckpointMode.EXACTLY_ONCE  #: for the subtasks; the coordinator does not use it
    tolerable_failures: int | None = None  #: None: failures never fail the job


class ExecutionMode(StrEnum):
    """What runs a job: the barrier runtime, or Spark as a batch plan (Flink: `execution.runtime-mode`)."""

    STREAMING = "streaming"
    BATCH = "batch"
    AUTOMATIC = "automatic"  #: BATCH if every source is bounded


class SlotTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long a run waits for slots (Flink: `slot.request.timeout`). None: without end."""

    request_ms: int | None = 300_000  #: before the run had slots for the first time
    replacement_ms: int | None = None  #: after it had them
    start_ms: int = 120_000  #: from the start of the slots' tasks until every slot has connected


class JobSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults are those of a job that nobody has tuned. Descriptions stand in the form and in the API's document."""

    execution_mode: Annotated[
        ExecutionMode,
        Meta(
            description="Streaming takes checkpoints; batch runs a bounded job as a Spark plan; automatic is "
            "batch where every source is bounded."
        ),
    ] = ExecutionMode.STREAMING
    checkpoint_mode: Annotated[
        CheckpointMode,
        Meta(description="At least once: no channel waits for a barrier, and a restart may handle records again."),
    ] = CheckpointMode.EXACTLY_ONCE
    checkpoint_interval_ms: Annotated[
        int, Meta(ge=100, le=86_400_000, description="From the start of one checkpoint to the start of the next.")
    ] = 5000
    checkpoint_timeout_ms: Annotated[
        int, Meta(ge=1000, le=86_400_000, description="A checkpoint that takes longer is given up.")
    ] = 60_000
    min_pause_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=86_400_000,
            description="Left between a completed checkpoint and the next. "
            "A failed one is tried again at once, but once.",
        ),
    ] = 500
    max_concurrent_checkpoints: Annotated[int, Meta(ge=1, le=100, description="So many may be under way at once.")] = 1
    tolerable_failed_checkpoints: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)] | None,
        Meta(description="More failures in a row restart the job. Empty: none ever does."),
    ] = None
    retained_checkpoints: Annotated[
        int, Meta(ge=1, le=1000, description="Completed checkpoints that are kept; savepoints are always kept.")
    ] = 5
    restart_strategy: Annotated[
        Literal["none", "fixed_delay", "exponential_delay"],
        Meta(description="After a failure: none, attempts at a fixed delay, or ever longer delays without end."),
    ] = "fixed_delay"
    restart_attempts: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Fixed delay: failures in a row, without a completed checkpoint, before the run fails.",
        ),
    ] = 10
    restart_delay_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="Fixed delay: waited before each new attempt.")
    ] = 1000
    restart_initial_backoff_ms: Annotated[
        int, Meta(ge=1, le=3_600_000, description="Exponential delay: waited after the first failure.")
    ] = 1000
    restart_max_backoff_ms: Annotated[
        int, Meta(ge=1, le=86_400_000, description="Exponential delay: never waited longer.")
    ] = 60_000
    restart_backoff_multiplier: Annotated[
        float, Meta(ge=1, le=100, description="Exponential delay: how much longer each failure makes it.")
    ] = 1.5
    restart_reset_after_ms: Annotated[
        int,
        Meta(
            ge=1, le=2_592_000_000, description="Exponential delay: running for so long without a failure begins anew."
        ),
    ] = 3_600_000
    restart_jitter: Annotated[
        float, Meta(ge=0, le=1, description="Exponential delay: the part of it by which chance may change it.")
    ] = 0.1
    on_corrupt_checkpoint: Annotated[
        Literal["fail", "previous"],
        Meta(
            description="When the newest checkpoint cannot be read: fail and name the one before, or restore that "
            "one. Then output committed since is repeated: no longer exactly once."
        ),
    ] = "fail"
    heartbeat_timeout_ms: Annotated[
        int, Meta(ge=1000, le=3_600_000, description="A slot that is silent for so long is taken for dead.")
    ] = 10_000
    slot_request_timeout_ms: Annotated[
        int, Meta(ge=1000, le=604_800_000, description="A new run waits so long for free slots, then it fails.")
    ] = 300_000
    slot_replacement_timeout_ms: Annotated[
        Annotated[int, Meta(ge=1000, le=604_800_000)] | None,
        Meta(description="A run that has lost slots waits so long for others. Empty: without end."),
    ] = None
    slot_start_timeout_ms: Annotated[
        int,
        Meta(ge=1000, le=3_600_000, description="From the start of the Spark tasks until every slot has connected."),
    ] = 120_000
    slot_memory_mb: Annotated[
        Annotated[int, Meta(ge=256, le=1_048_576)] | None,
        Meta(
            description="A slot whose process uses more memory fails by name instead of taking its host down. At least "
            "256; not in batch. Empty: no bound."
        ),
    ] = None
    spark: Annotated[
        dict[str, str],
        Meta(description='Settings of the run\'s Spark application as JSON, such as {"spark.executor.memory": "2g"}.'),
    ] = {}

    def __post_init__(self) -> None:
        """Raises ValueError where settings contradict each other."""
        if self.restart_max_backoff_ms < self.restart_initial_backoff_ms:
            raise ValueError("`restart_max_backoff_ms` must not be below `restart_initial_backoff_ms`")
        check_spark_settings(self.spark)

    @property
    def coordinator(self) -> CoordinatorSettings:
        return CoordinatorSettings(
            interval_ms=self.checkpoint_interval_ms,
            timeout_ms=self.checkpoint_timeout_ms,
            min_pause_ms=self.min_pause_ms,
            max_concurrent=self.max_concurrent_checkpoints,
            mode=self.checkpoint_mode,
            tolerable_failures=self.tolerable_failed_checkpoints,
        )

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
