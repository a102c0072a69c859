"""Facts of a run that is well, for a rule's test to change: `orders` and `payments` into `join`, then `sink`."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from console.health.assessment import assess
from console.health.facts import (
    CheckpointFacts,
    CompletedCheckpoint,
    FailedAttempt,
    OperatorFacts,
    RunFacts,
    SubtaskFacts,
)
from console.health.findings import Finding, Verdict
from console.metrics.live import Live, SlotLive
from runtime.core.job.graph import Role
from runtime.core.job.lifecycle import RunState

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def subtask(index: int = 0, **numbers: Any) -> SubtaskFacts:
    """Reads 500 records per second; its watermark advances with the clock."""
    return SubtaskFacts(
        index=index,
        **{
            "records_per_s": 500.0,
            "busy": 0.3,
            "backpressured": 0.0,
            "watermark": 1_000_000,
            "still_s": 0.0,
            "advance_ms": 70_000,
            **numbers,
        },
    )


def operator(uid: str, *inputs: str, role: Role = Role.OPERATOR, **changes: Any) -> OperatorFacts:
    """An operator behind forward edges of `inputs`."""
    fields = {"forward_inputs": inputs, "subtasks": (subtask(0), subtask(1)), **changes}
    return OperatorFacts(uid=uid, role=role, inputs=inputs, **fields)


def checkpoint(**changes: Any) -> CompletedCheckpoint:
    """Completed 3 s ago, in 0.3 s."""
    fields = {"pk": 77, "number": 7, "completed_at": ago(3), "duration_ms": 300.0, "operators": (), **changes}
    return CompletedCheckpoint(**fields)


def phases(uid: str, written_bytes: int = 0, **took_ms: float) -> dict[str, Any]:
    """Statistics of an operator in a checkpoint, as the job master stores them."""
    names = ("start_delay", "pre_barrier", "alignment", "sync", "async")
    times = {name: took_ms.get(name.rstrip("_"), took_ms.get(f"{name}_", 0.0)) for name in names}
    return {
        "uid": uid,
        "written_bytes": written_bytes,
        **{f"max_{name}_ms": ms for name, ms in times.items()},
        "slowest": {"subtask": 0, **{f"{name}_ms": ms for name, ms in times.items()}},
    }


def failed_attempt(seconds_ago: float, **changes: Any) -> FailedAttempt:
    fields = {"ended_at": ago(seconds_ago), "message": "KeyError: 'x'", "code": "attempt-failed", **changes}
    return FailedAttempt(**fields)


def operators(**changes: Mapping[str, Any]) -> dict[str, OperatorFacts]:
    """The operators, with changes by uid."""
    by_uid = {
        "orders": operator("orders", role=Role.SOURCE),
        "payments": operator("payments", role=Role.SOURCE),
        "join": operator("join", "orders", "payments"),
        "sink": operator("sink", "join", role=Role.SINK),
    }
    return {uid: replace(entry, **changes.get(uid, {})) for uid, entry in by_uid.items()}


def facts(**changes: Any) -> RunFacts:
    live = Live(at=ago(1), slots=(SlotLive(index=0, host="h1", pid=4, seen_ms_ago=300.0),))
    fields: dict[str, Any] = {
        "now": NOW,
        "state": RunState.RUNNING,
        "created_at": ago(7_200),
        "started_at": ago(7_190),
        "live": live,
        "checkpoints": CheckpointFacts(interval_ms=5_000, newest=checkpoint(), recent_ms=(300.0, 320.0)),
        "operators": operators(),
        "flow_s": 30.0,
        "watermark_s": 70.0,
        **changes,
    }
    return RunFacts(**fields)


def verdict(**changes: Any) -> Verdict:
    return assess(facts(**changes))


def found(rule: str, **changes: Any) -> Finding | None:
    """The finding of `rule` in the facts, if any."""
    return next((finding for finding in verdict(**changes).findings if finding.rule == rule), None)


def sentence(rule: str, **changes: Any) -> str:
    finding = found(rule, **changes)
    assert finding is not None, f"{rule} found nothing, but {verdict(**changes)}"
    return finding.sentence
