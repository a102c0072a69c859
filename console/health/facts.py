"""Facts of a run, as the rules of its health see them. Plain values: no query and no clock.

`console.health.collection` fills them from rows; tests fill them by hand or from recorded runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from console.checkpoints.file_systems import FileSystem
from console.health.ages import marked_age
from console.jobs.operator_names import quoted
from console.metrics.live import NO_METRICS, Live
from console.metrics.reads import MAX_AGE, Read
from runtime.core.job.graph import Role
from runtime.core.job.lifecycle import FLOWING_STATES, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskFacts:
    """A subtask. Records, `busy` and `backpressured` are means over `RunFacts.flow_s`.

    Args:
        records_per_s: received records, for a source sent records.
        watermark: None before the first watermark and at the end of the input.
        still_s: seconds since the watermark has changed, at most `RunFacts.watermark_s`.
        advance_ms: increase of the watermark over `RunFacts.watermark_s`; 0 without watermark.
        idle: the subtask is marked idle, so no receiver waits for its watermark.
    """

    index: int = 0
    records_per_s: float = 0.0
    busy: float = 0.0
    backpressured: float = 0.0
    watermark: int | None = None
    still_s: float = 0.0
    advance_ms: int = 0
    idle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SentFacts:
    """Records that a source has sent within a day, by quarters of an hour.

    Args:
        quarters: number of quarters until the newest one with records; `with_records`: those of them with records.
        per_s: records per second of these.
        was_silent_before: the source sent no records at the same time a day or a week ago either.
    """

    quarters: int = 0
    with_records: int = 0
    per_s: float = 0.0
    was_silent_before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFacts:
    """An operator. `inputs` are its predecessors without feedback, `forward_inputs` those behind a forward edge.

    Args:
        label: its name as the graph shows it, with the uid if another operator has the same name; "": it has none.
        state_bytes: bytes of state two hours ago, an hour ago and now; None: unknown.
        lag_ms: how far its watermark is behind the clock, a quarter of an hour ago and now; None: unknown.
        silent_since: since when a source has sent no records; None while it sends some, and for other operators.
        usual_per_s: median of the records per second that it sent in the two hours before the last quarter; 0: unknown.
        lit: rules that the former verdict found at this operator.
    """

    uid: str
    label: str = ""
    role: Role = Role.OPERATOR
    bounded: bool = False
    inputs: tuple[str, ...] = ()
    forward_inputs: tuple[str, ...] = ()
    finished: bool = False
    subtasks: tuple[SubtaskFacts, ...] = ()
    state_bytes: tuple[int | None, int | None, int | None] = (None, None, None)
    lag_ms: tuple[int | None, int | None] = (None, None)
    usual_per_s: float = 0.0
    sent: SentFacts = SentFacts()
    silent_since: datetime | None = None
    lit: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return quoted(self.label or self.uid)

    @property
    def busy(self) -> float:
        """Busy fraction of the busiest subtask: a skewed operator is as slow as that subtask."""
        return max((subtask.busy for subtask in self.subtasks), default=0.0)

    @property
    def backpressured(self) -> float:
        """Mean fraction of time that the subtasks wait for receivers."""
        return sum(s.backpressured for s in self.subtasks) / len(self.subtasks) if self.subtasks else 0.0

    @property
    def records_per_s(self) -> float:
        return sum(subtask.records_per_s for subtask in self.subtasks)

    @property
    def skew(self) -> float | None:
        """Records of the busiest subtask, divided by the mean: 1 is even. None: a single subtask, or no records."""
        total = self.records_per_s
        if len(self.subtasks) < 2 or total <= 0:
            return None
        return max(subtask.records_per_s for subtask in self.subtasks) / total * len(self.subtasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCheckpoint:
    """A completed checkpoint. `operators` has the statistics per operator that the job master stored.

    `acknowledged_ms`: time from the trigger to the last acknowledgement; None: unknown, or the checkpoint was quick.
    """

    pk: int
    number: int
    completed_at: datetime
    duration_ms: float
    operators: Sequence[Mapping[str, Any]] = ()
    acknowledged_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """Checkpoints of the run, without savepoints, which commit no output.

    Args:
        timeout_ms: duration from which a checkpoint fails.
        recent_ms: durations of the newest completed checkpoints, newest first.
        earlier_ms: median duration between two hours and an hour ago; None: unknown.
        failed: number of checkpoints that failed since `newest`, up to 100; `failed_pk` … belong to the newest.
        begun_at: trigger of the checkpoint in progress, which has the key `begun_pk`.
    """

    interval_ms: int | None = None
    newest: CompletedCheckpoint | None = None
    timeout_ms: int | None = None
    recent_ms: tuple[float, ...] = ()
    earlier_ms: float | None = None
    failed: int = 0
    failed_pk: int | None = None
    failed_number: int = 0
    failed_reason: str = ""
    failed_detail: str = ""
    begun_pk: int | None = None
    begun_at: datetime | None = None
    acknowledged: int = 0
    subtasks: int = 0


@dataclass(frozen=True, slots=True)
class FailedSavepoint:
    """The newest savepoint of the run, which failed."""

    pk: int
    number: int
    failed_at: datetime
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FailedDrill:
    """The restore drill of the job that ended last, which failed. `number`: of the snapshot; None: it is gone."""

    ended_at: datetime
    message: str
    number: int | None = None


@dataclass(frozen=True, slots=True)
class StateChange:
    """The change of state under way: a start, a stop, a drain or a cancel, since its request or its claim.

    `longest_ms`: the longest of the last changes of this kind of the job; None: there was none.
    """

    since: datetime
    longest_ms: float | None = None


@dataclass(frozen=True, slots=True)
class MissedTime:
    """A time of a schedule at which its operation could not be requested. `noun`: savepoint or restore drill."""

    noun: str
    at: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """An attempt that failed, as `runtime.core.attempt.failover` recorded it.

    Args:
        tries: failures of this kind in a row.
        failures: failures in a row that the restart strategy counts; None: it counted none.
    """

    ended_at: datetime
    message: str
    code: str = ""
    operator: str = ""
    tries: int = 1
    failures: int | None = None
    next_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFacts:
    """A standing stage without a running process. `owners`: all places for stages are taken by these."""

    operator: str
    is_restarting: bool
    deaths: int = 0
    reason: str = ""
    created_at: datetime
    owners: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A run at the time `now`.

    Args:
        other_code: how the code of the run differs from that of its version, in a sentence; "" if it does not.
        max_restarts: restarts in a row before the run fails; None: no limit.
        failure: message of a failed run, without secrets. `failed_operator`: the operator that it names, or "".
        lease_lost_at: when the run lost its worker, until the next worker claims it; None while a worker holds it.
        queued_at: since when a queued run has waited for a worker.
        held_places: names of jobs whose runs workers execute now, at most `MAX_NAMED` + 1; `places` is their number.
        failed_savepoint: None if the newest savepoint has completed, or there is none.
        failed_drill: None if the newest drill has succeeded, or there is none.
        change: None unless the run starts or ends.
        missed: the last time of each schedule, if it was missed during the run.
        attempts: failed attempts of the last hour, newest first, at most 20.
        sampled_at: end of the newest sample of the subtasks, None without any in the last hour.
        flow_s: time up to `sampled_at` that the means of subtasks cover; 0: the attempt is too young.
        reads: the records that the sources have read in each of the newest intervals, oldest first.
        lag_ms: how far the run is behind the clock; None: unknown, or historic data.
        behind_newest_ms: how far its watermark is behind the newest record of a source; None: unknown.
        max_silence_s: the limit of the job for a source without records; 0: by the history of the source.
        watermark_s: time that `SubtaskFacts.still_s` and `advance_ms` cover.
        operators: in topological order; empty for a run in BATCH.
        low_disks: file systems of Weir with too little free space (`WEIR_MIN_FREE_MB`).
        lit: rules that the former verdict found; they hold until a lower limit (hysteresis).
    """

    now: datetime
    state: RunState
    is_batch: bool = False
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    other_code: str = ""
    max_restarts: int | None = None
    failure: str = ""
    failed_operator: str = ""
    live: Live = NO_METRICS
    lease_lost_at: datetime | None = None
    queued_at: datetime | None = None
    places: int = 0
    held_places: tuple[str, ...] = ()
    checkpoints: CheckpointFacts = CheckpointFacts()
    failed_savepoint: FailedSavepoint | None = None
    failed_drill: FailedDrill | None = None
    change: StateChange | None = None
    missed: tuple[MissedTime, ...] = ()
    attempts: tuple[FailedAttempt, ...] = ()
    stages: tuple[StageFacts, ...] = ()
    operators: Mapping[str, OperatorFacts] = field(default_factory=dict)
    sampled_at: datetime | None = None
    flow_s: float = 0.0
    reads: tuple[Read, ...] = ()
    lag_ms: int | None = None
    behind_newest_ms: int | None = None
    max_silence_s: int = 0
    watermark_s: float = 0.0
    low_disks: tuple[FileSystem, ...] = ()
    lit: frozenset[str] = frozenset()

    @property
    def replays_from(self) -> datetime | None:
        """The time of the input that a failure now would read again first: the trigger of the newest checkpoint."""
        newest = self.checkpoints.newest
        return newest.completed_at - timedelta(milliseconds=newest.duration_ms) if newest else self.started_at

    @property
    def recovery_point(self) -> datetime | None:
        """When the run last made a restore possible: its newest completed checkpoint, else its start."""
        newest = self.checkpoints.newest
        return newest.completed_at if newest else self.started_at

    @property
    def old_since(self) -> datetime | None:
        """`sampled_at` if newer samples are overdue; then the facts of subtasks are the last known ones."""
        is_old = self.sampled_at is not None and self.now - self.sampled_at >= MAX_AGE
        return self.sampled_at if is_old else None

    @property
    def skew(self) -> dict[str, float]:
        """By operator; empty unless records flow and the facts of subtasks are recent."""
        if self.state not in FLOWING_STATES or self.old_since is not None:
            return {}
        return {uid: operator.skew for uid, operator in self.operators.items() if operator.skew is not None}

    def operator(self, uid: str) -> str:
        """The operator in a sentence. A run in BATCH, or another version, may have no operator `uid`: then its uid."""
        return str(self.operators.get(uid) or OperatorFacts(uid=uid))

    def not_counted(self, noun: str) -> str:
        """A sentence on failures or waits that bring the run no closer to its end; "" if its restarts have no limit.

        The head counts all restarts; the limit is one of failures in a row.
        """
        return "" if self.max_restarts is None else f"{noun} does not count towards its limit of restarts. "

    def age(self, since: datetime) -> str:
        """The time since a moment, for a sentence; pages let it tick."""
        return marked_age(since, self.now)

    def ms_since(self, moment: datetime) -> float:
        return (self.now - moment) / timedelta(milliseconds=1)

    def exceeds(self, rule: str, value: float, enter: float, leave: float) -> bool:
        """Whether `value` reaches the limit of `rule`: `enter`, or `leave` while the rule is lit."""
        return value >= (leave if rule in self.lit else enter)
