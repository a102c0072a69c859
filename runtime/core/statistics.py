"""How the checkpoints of a run have gone: counts, the latest of each kind, and how durations and sizes are spread.

A pure value: `observed` takes each effect of the coordinator in order and gives the next value. It does not know where
it is shown. The law it keeps: triggered = in progress + completed + failed. (Flink's `CheckpointStatsTracker`.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, quantiles
from typing import Final

from runtime.core.checkpoint import FailureReason
from runtime.core.effects import CoordinatorEffect, ReportCheckpoint, StoreManifest
from runtime.core.ids import CheckpointId
from runtime.core.messages import CheckpointKind

REMEMBERED: Final = 1_000  #: ended checkpoints over which durations and sizes are summed up


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStats:
    """One checkpoint. `ended_at` is None while it is in progress; `reason` is set when it has failed."""

    checkpoint: CheckpointId
    kind: CheckpointKind
    triggered_at: int
    ended_at: int | None = None
    reason: FailureReason | None = None
    state_bytes: int = 0  #: all that its manifest names
    written_bytes: int = 0  #: of that, what was written for it

    @property
    def completed(self) -> bool:
        return self.ended_at is not None and self.reason is None

    @property
    def duration_ms(self) -> int:
        assert self.ended_at is not None, "it is still in progress"
        return self.ended_at - self.triggered_at


@dataclass(frozen=True, slots=True)
class Spread:
    """How some values are spread. Percentiles between two values are interpolated."""

    least: float
    mean: float
    most: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Of one run. Counts are of its whole life, spreads of its latest completed checkpoints."""

    triggered: int = 0
    completed: int = 0
    failed: int = 0
    restored: int = 0
    open: Mapping[CheckpointId, CheckpointStats] = field(default_factory=dict)
    history: tuple[CheckpointStats, ...] = ()  #: ended ones, oldest first, at most `REMEMBERED`
    latest_completed: CheckpointStats | None = None  #: not a savepoint
    latest_savepoint: CheckpointStats | None = None
    latest_failed: CheckpointStats | None = None
    latest_restored: CheckpointId | None = None

    @property
    def in_progress(self) -> int:
        return len(self.open)

    @property
    def duration_ms(self) -> Spread | None:
        return spread([one.duration_ms for one in self.history if one.completed])

    @property
    def state_bytes(self) -> Spread | None:
        return spread([one.state_bytes for one in self.history if one.completed])

    @property
    def written_bytes(self) -> Spread | None:
        return spread([one.written_bytes for one in self.history if one.completed])


def observed(now: Statistics, effect: CoordinatorEffect) -> Statistics:
    """The statistics after the coordinator has wished for `effect`."""
    match effect:
        case ReportCheckpoint(checkpoint, reason=None, acknowledged=0):
            begun = CheckpointStats(checkpoint=checkpoint, kind=effect.kind, triggered_at=effect.triggered_at)
            return replace(now, triggered=now.triggered + 1, open={**now.open, checkpoint: begun})
        case ReportCheckpoint(checkpoint) if checkpoint in now.open:
            return _ended(now, replace(now.open[checkpoint], ended_at=effect.at, reason=effect.reason))
        case StoreManifest():
            return _sized(now, effect)
        case _:
            return now


def restored(now: Statistics, checkpoint: CheckpointId, at: int) -> Statistics:
    """Another attempt begins from `checkpoint`. What the one before left open has failed, unless it is the very one."""
    after = now
    for left in now.open.values():
        reason = None if left.checkpoint == checkpoint else FailureReason.SUSPENDED
        after = _ended(after, replace(left, ended_at=at, reason=reason))
    return replace(after, restored=now.restored + 1, latest_restored=checkpoint)


def spread(values: Sequence[float]) -> Spread | None:
    """None without values."""
    if not values:
        return None
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else [values[0]] * 99
    p50, p90, p95, p99 = (cuts[percent - 1] for percent in (50, 90, 95, 99))
    return Spread(min(values), fmean(values), max(values), p50, p90, p95, p99)


def _sized(now: Statistics, effect: StoreManifest) -> Statistics:
    checkpoint = CheckpointId(effect.manifest.checkpoint)
    state_bytes = sum(segment.nbytes for segment in effect.manifest.segments())
    written_bytes = sum(timings.written_bytes for _, timings in effect.timings)
    sized = replace(now.open[checkpoint], state_bytes=state_bytes, written_bytes=written_bytes)
    return replace(now, open={**now.open, checkpoint: sized})


def _ended(now: Statistics, one: CheckpointStats) -> Statistics:
    still = {checkpoint: other for checkpoint, other in now.open.items() if checkpoint != one.checkpoint}
    after = replace(now, open=still, history=(*now.history, one)[-REMEMBERED:])
    if not one.completed:
        return replace(after, failed=now.failed + 1, latest_failed=one)
    if one.kind.is_savepoint:
        return replace(after, completed=now.completed + 1, latest_savepoint=one)
    return replace(after, completed=now.completed + 1, latest_completed=one)
