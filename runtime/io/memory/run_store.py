"""In-memory counterpart of a run's records: a single run, fenced like the real records. For local runs and tests."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.core.attempt.events import OperationRequest
from runtime.core.checkpoint.effects import ReportCheckpoint
from runtime.core.checkpoint.retention_plan import RetainedCheckpoint, plan_retention
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import RunEvent, RunState, next_state
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.settings import RetentionPolicy
from runtime.run_store import (
    CompletedCheckpoint,
    LaunchTimes,
    MetricsInterval,
    PendingProgress,
    late_rows,
)


@dataclass
class MemoryRunStore:
    """Implements `run_store.RunStore`. `restore_from` is the folder of a checkpoint to start from."""

    token: Token = Token(1)
    state: RunState = RunState.STARTING
    restore_from: str | None = None
    completed: list[CompletedCheckpoint] = field(default_factory=list)
    reports: list[ReportCheckpoint] = field(default_factory=list)
    operations: list[OperationRequest] = field(default_factory=list)
    settled: dict[str, tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]] = field(default_factory=dict)
    failure: Mapping[str, Any] | None = None
    live: Mapping[str, Any] = field(default_factory=dict)
    history: list[MetricsInterval] = field(default_factory=list)
    attempts: list[tuple[int, str, str]] = field(default_factory=list)
    details: list[Mapping[str, Any]] = field(default_factory=list)  #: of failed attempts
    launches: list[LaunchTimes] = field(default_factory=list)
    superseded: bool = False
    _ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _taken_operations: list[OperationRequest] = field(default_factory=list)
    _discarded: set[int] = field(default_factory=set)

    @property
    def late_rows(self) -> dict[str, int]:
        """The number of late rows of each step that has had some, by uid, in the last attempt."""
        return late_rows(self.live)

    def reserve_ids_above(self, checkpoint: int, token: int) -> None:
        """Sets token and checkpoint ids above the ids of earlier runs in the storage. Call before the run begins."""
        if token >= self.token:
            self.token = Token(token + 1)
        self._ids = itertools.count(max(checkpoint + 1, next(self._ids)))

    def next_checkpoint_id(self) -> int | None:
        return None if self.superseded else next(self._ids)

    def report_checkpoint(self, report: ReportCheckpoint) -> None:
        self.reports.append(report)

    def record_checkpoint(self, completed: CompletedCheckpoint) -> bool:
        if self.superseded:
            return False
        if not any(c.manifest.checkpoint == completed.manifest.checkpoint for c in self.completed):
            self.completed.append(completed)
            self.completed.sort(key=lambda each: each.manifest.checkpoint)
        return True

    def change_state(
        self, event: RunEvent, failure: Mapping[str, Any] | None = None, savepoint: int | None = None
    ) -> RunState | None:
        if self.superseded:
            return None
        if savepoint is not None:
            endings = [o for o in self.operations + self._taken_operations if o.kind in ("stop", "drain")]
            self.settled |= {o.id: ({"checkpoint": savepoint}, None) for o in endings if o.id not in self.settled}
        self.state = next_state(self.state, event) or self.state
        self.failure = failure or self.failure
        return self.state

    def next_attempt(self, reason: str, detail: Mapping[str, Any]) -> Token | None:
        if self.superseded:
            return None
        self.attempts.append((self.token, "failed", reason))
        self.details.append(detail)
        self.token = Token(self.token + 1)
        return self.token

    def end_attempt(self, outcome: str, reason: str = "") -> None:
        self.attempts.append((self.token, outcome, reason))

    def record_restore(self, folder: str | None) -> None:
        return None

    def record_launch(self, times: LaunchTimes) -> None:
        self.launches.append(times)

    def write_live(self, live: Mapping[str, Any], pending: PendingProgress | None = None) -> None:
        self.live = live

    def add_history(self, intervals: Sequence[MetricsInterval]) -> None:
        if not self.superseded:
            self.history += [interval for interval in intervals if interval not in self.history]

    def take_operations(self, *, only_cancel: bool) -> list[OperationRequest] | None:
        if self.superseded:
            return None
        requests = [o for o in self.operations if o.kind == "cancel" or not only_cancel]
        self.operations = [o for o in self.operations if o not in requests]
        self._taken_operations += requests
        return [
            o for o in self._taken_operations if o.id not in self.settled and (o.kind == "cancel" or not only_cancel)
        ]

    def requeue_operations(self) -> None:
        self.operations = [o for o in self._taken_operations if o.id not in self.settled] + self.operations
        self._taken_operations = []

    def complete_operation(self, id: str, result: Mapping[str, Any] | None, error: Mapping[str, Any] | None) -> None:
        self.settled[id] = (result, error)

    def restore_point(self, passed_over: Sequence[str] = ()) -> str | None:
        folders = [
            c.folder
            for c in self.completed
            if c.manifest.kind is CheckpointKind.CHECKPOINT and c.manifest.checkpoint not in self._discarded
        ]
        candidates = [self.restore_from, *folders] if self.restore_from else folders
        return next((folder for folder in reversed(candidates) if folder not in passed_over), None)

    def checkpoints_since(self, checkpoint: int) -> list[int]:
        return [
            c.manifest.checkpoint
            for c in self.completed
            if c.manifest.checkpoint > checkpoint and c.manifest.kind is not CheckpointKind.SAVEPOINT
        ]

    def final_savepoint(self) -> str | None:
        return next((c.folder for c in reversed(self.completed) if c.manifest.kind.ends_job), None)

    def retained_folders(self) -> list[str]:
        folders = [c.folder for c in self.completed if c.manifest.checkpoint not in self._discarded]
        if self.restore_from is None or self.restore_from.startswith("/"):  # no retention for files elsewhere
            return folders
        return [*folders, self.restore_from]

    def discard_older(self, policy: RetentionPolicy) -> list[str]:
        if self.superseded:
            return []
        by_number = {c.manifest.checkpoint: c for c in self.completed if c.manifest.checkpoint not in self._discarded}
        retained = [
            RetainedCheckpoint(
                number=number, run=0, triggered_ms=c.manifest.triggered_at, is_savepoint=c.manifest.kind.is_savepoint
            )
            for number, c in by_number.items()
        ]
        plan = plan_retention(retained, policy, run=0, restored=None)
        self._discarded.update(plan.discarded)
        return [by_number[number].folder for number in plan.discarded]
