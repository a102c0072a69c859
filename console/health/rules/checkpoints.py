"""Rules on checkpoints: failing, slow, overdue, slow storage, unreadable manifests."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any, Final

from console import formats
from console.health.facts import CheckpointFacts, CompletedCheckpoint, RunFacts
from console.health.findings import Finding, Level
from console.health.rules.attempts import storage_cause
from console.health.rules.flow import Bottleneck, bottleneck, full_slot
from runtime.core.snapshot.failure_reason import FailureReason

MAX_COUNTED_FAILURES: Final = 100  #: failures counted exactly; more are shown as "100 or more"
OVERDUE_INTERVALS: Final = 3
MIN_OVERDUE: Final = timedelta(seconds=10)  #: minimum age of an overdue checkpoint; intervals may be as short as 100 ms
MIN_OVERDUE_FIRST: Final = timedelta(seconds=60)  #: the first checkpoint follows deployment and restore
MIN_FAILURES: Final = 3  #: failures in a row that make a job fail, since no output is committed any more
NAMED_FAILURES: Final = 2  #: failures in a row that are a finding before the next checkpoint is overdue
SLOW: Final = "checkpoints-slow"
STORAGE: Final = "storage-slow"
SAVEPOINT_SHOWN: Final = timedelta(days=1)  #: how long a failed savepoint is a finding without a later one
MIN_SLOW_COMMIT_MS: Final = 1_500  #: while the rule is lit; the acknowledgements of quicker checkpoints are not read
_SLOW_BYTES_PER_S: Final = 4 * 1024 * 1024
_PHASE_NAMES: Final = {
    "start_delay": "start delay before",
    "pre_barrier": "records before the barrier in",
    "alignment": "alignment at",
    "sync": "state copy in",
    "async": "state upload of",
}


@dataclass(frozen=True, slots=True)
class Blame:
    """The phase of a checkpoint that took longest, and its operator; `commit` has no operator."""

    phase: str
    operator: str
    took_ms: float
    written_bytes: int = 0


def blame(checkpoint: CompletedCheckpoint) -> Blame:
    """The longest phase of a checkpoint.

    A start delay reaches all operators behind the bottleneck: the first of them, in topological order, with at least
    half of the longest delay is to blame. `commit` is the time after the last acknowledgement: metadata and output.
    """
    candidates = [_longest(phase, checkpoint.operators) for phase in _PHASE_NAMES]
    candidates.append(Blame("commit", "", _commit_ms(checkpoint)))
    return max(candidates, key=lambda candidate: candidate.took_ms)


def _commit_ms(checkpoint: CompletedCheckpoint) -> float:
    """Time after the last acknowledgement. Without its time, the phases of the slowest subtask take its place.

    The phases end when the snapshot is stored. The acknowledgement then waits for a busy job master, which is no
    fault of the storage.
    """
    acknowledged_ms = checkpoint.acknowledged_ms
    if acknowledged_ms is None:
        acknowledged_ms = max((_total_ms(operator) for operator in checkpoint.operators), default=0.0)
    return max(0.0, checkpoint.duration_ms - acknowledged_ms)


def _longest(phase: str, operators: Any) -> Blame:
    times = [(float(operator.get(f"max_{phase}_ms") or 0.0), operator) for operator in operators]
    longest = max((took for took, _ in times), default=0.0)
    for took, operator in times:
        if took > 0 and took >= longest * (0.5 if phase == "start_delay" else 1.0):
            return Blame(phase, str(operator["uid"]), took, int(operator.get("written_bytes") or 0))
    return Blame(phase, "", 0.0)


def _total_ms(operator: Mapping[str, Any]) -> float:
    """Time until the slowest subtask of the operator acknowledged."""
    slowest = operator.get("slowest") or {}
    total = sum(float(slowest.get(f"{phase}_ms") or 0.0) for phase in _PHASE_NAMES)
    return max(total, *(float(operator.get(f"max_{phase}_ms") or 0.0) for phase in _PHASE_NAMES))


def _cause(facts: RunFacts, blamed: Blame, root: Bottleneck | None) -> str:
    """The clause on the phase: start delay before `slow`, which is 100 % busy; 3 operators wait for it."""
    took = formats.duration(blamed.took_ms)
    if blamed.phase == "commit":
        return f"{took} passed after the last acknowledgement, for metadata and the commit of output"
    where = f"{_PHASE_NAMES[blamed.phase]} {facts.operator(blamed.operator)}"
    clause = f"{where} took {took}"
    if root is not None and blamed.phase in ("start_delay", "alignment"):
        if root.root.uid == blamed.operator:
            return f"{where}, {root.clause}"
        return f"{clause}; the root is {root.root}, {root.clause}"
    if blamed.phase == "async":
        return f"{clause} for {formats.size(blamed.written_bytes)}"
    return clause


def slow(facts: RunFacts) -> Iterator[Finding]:
    """Checkpoints that take too long: the median of the newest, or the one in progress."""
    checkpoints, interval_ms = facts.checkpoints, facts.checkpoints.interval_ms
    if not interval_ms:
        return
    pending_ms = facts.ms_since(checkpoints.begun_at) if checkpoints.begun_at else 0.0
    took_ms = max(median(checkpoints.recent_ms) if checkpoints.recent_ms else 0.0, pending_ms)
    compared = _compared(facts, took_ms)
    if not compared or not facts.exceeds(SLOW, took_ms, 5_000, 3_000):
        return
    root = None if facts.old_since else bottleneck(facts)
    newest = checkpoints.newest
    if pending_ms >= took_ms and (newest is None or newest.duration_ms < took_ms / 2):
        cause = f"barriers wait for {root.root}, {root.clause}" if root else _acknowledged(checkpoints)
        text = f"A checkpoint has taken {_pending(facts)}, {compared}: {cause}."
    elif newest is not None:
        blamed = blame(newest)
        is_longer = blamed.took_ms > took_ms  # the median of the newest hides how they grow
        clause = f", and the newest took {formats.duration(newest.duration_ms)}" if is_longer else ""
        text = f"Checkpoints take {formats.duration(took_ms)}, {compared}{clause}: {_cause(facts, blamed, root)}."
    else:
        return
    operator = root.root.uid if root else blame(newest).operator if newest else ""
    yield Finding(
        sentence=text,
        operator=operator,
        checkpoint=newest.pk if newest else None,
        remedy=f"Relieve {root.root}." if root else "" if operator else "Take checkpoints less often.",
    )


def _pending(facts: RunFacts) -> str:
    """How long the checkpoint in progress has taken."""
    begun_at = facts.checkpoints.begun_at
    return facts.age(begun_at) if begun_at else ""


def _compared(facts: RunFacts, took_ms: float) -> str:
    """`took_ms` beside the interval, the time-out or the checkpoints of an hour ago; "" if it is long beside none."""
    checkpoints = facts.checkpoints
    interval_ms, timeout_ms, earlier_ms = checkpoints.interval_ms, checkpoints.timeout_ms, checkpoints.earlier_ms
    is_near_timeout = bool(timeout_ms) and facts.exceeds(SLOW, took_ms / (timeout_ms or 1), 0.5, 0.35)
    if interval_ms and facts.exceeds(SLOW, took_ms / interval_ms, 3.0, 2.0):
        share = f" and {formats.percent(took_ms / (timeout_ms or 1))} of the time-out" if is_near_timeout else ""
        return f"{took_ms / interval_ms:.0f} times the interval{share}"
    if is_near_timeout:
        return f"and the time-out is {formats.duration(timeout_ms)}"
    if earlier_ms and facts.exceeds(SLOW, took_ms / earlier_ms, 5.0, 3.0):
        return f"{took_ms / earlier_ms:.0f} times as long as an hour ago"
    return ""


def storage_slow(facts: RunFacts) -> Iterator[Finding]:
    """Storage that is slow for the bytes that it took, or slow with metadata after the last acknowledgement."""
    newest = facts.checkpoints.newest
    if newest is None:
        return
    stored = _longest("async", newest.operators)
    commit_ms = _commit_ms(newest)
    quick_ms = stored.written_bytes / _SLOW_BYTES_PER_S * 1000
    if facts.exceeds(STORAGE, stored.took_ms - quick_ms, 2_000, 1_000) and stored.took_ms >= commit_ms:
        what = f"{facts.operator(stored.operator)} took {formats.duration(stored.took_ms)} to store"
        text = f"Storage is slow: {what} {formats.size(stored.written_bytes)} for checkpoint {newest.number}."
    elif facts.exceeds(STORAGE, commit_ms, 3_000, MIN_SLOW_COMMIT_MS):
        text = (
            f"Storage is slow: checkpoint {newest.number} took {formats.duration(commit_ms)} after the last "
            "acknowledgement, for its manifest and the commit of output."
        )
    else:
        return
    yield Finding(sentence=text, operator=stored.operator, checkpoint=newest.pk)


def overdue_since(facts: RunFacts) -> datetime | None:
    """Completion of the newest checkpoint, or the start of the run, if the next checkpoint is overdue."""
    checkpoints, interval_ms = facts.checkpoints, facts.checkpoints.interval_ms
    point = facts.recovery_point
    if facts.is_batch or facts.live.ending or point is None or not interval_ms:
        return None
    least = MIN_OVERDUE if checkpoints.newest else MIN_OVERDUE_FIRST
    limit = max(OVERDUE_INTERVALS * timedelta(milliseconds=interval_ms), least)
    return point if facts.now - point > limit else None


def failing(facts: RunFacts) -> Iterator[Finding]:
    """Checkpoints that fail in a row, or make one overdue. Output is not committed, and a failure goes back far."""
    checkpoints, since = facts.checkpoints, overdue_since(facts)
    if since is None and checkpoints.failed >= NAMED_FAILURES:
        since = facts.recovery_point
    if since is None or not checkpoints.failed:
        return
    reason = _reason(checkpoints.failed_reason, checkpoints.failed_detail)
    cause, _ = storage_cause(checkpoints.failed_detail)
    number = f"{checkpoints.failed}{' or more' if checkpoints.failed >= MAX_COUNTED_FAILURES else ''}"
    is_known = checkpoints.failed_reason == FailureReason.EXPIRED and facts.old_since is None
    root, slot = (bottleneck(facts), full_slot(facts)) if is_known else (None, None)
    operator, late = "", ""
    if root:
        operator, late = root.root.uid, f" Barriers wait for {root.root}, {root.clause}."
    elif slot:
        operator, late = slot.operator.uid, f" {slot.clause}."
    yield Finding(
        sentence=f"{f'{cause}. ' if cause else ''}{_overdue_text(facts, since)} {number} failed since then, "
        f"checkpoint {checkpoints.failed_number} with {reason}.{late}",
        level=Level.FAILED if cause or checkpoints.failed >= MIN_FAILURES else Level.ATTENTION,
        operator=operator,
        checkpoint=checkpoints.failed_pk,
        since=since,
    )


def savepoint_failed(facts: RunFacts) -> Iterator[Finding]:
    """A savepoint that failed, until a later one completes. Its operation has ended, so nothing else shows it."""
    failed = facts.failed_savepoint
    if failed is None or facts.now - failed.failed_at > SAVEPOINT_SHOWN:
        return
    ago = f"{facts.age(failed.failed_at)} ago"
    failure = f"failed {ago} with {_reason(failed.reason, failed.detail)}"
    ending = f"expired {ago}" if failed.reason == FailureReason.EXPIRED else failure
    yield Finding(
        sentence=f"Savepoint {failed.number} {ending}. No later savepoint has completed.",
        checkpoint=failed.pk,
        since=failed.failed_at,
    )


def _reason(reason: str, detail: str) -> str:
    return reason.replace("_", " ") + (f": {detail.rstrip('.')}" if detail else "")


def overdue(facts: RunFacts) -> Iterator[Finding]:
    """No checkpoint completes, and none fails. One in progress that is as slow as the newest was is no news."""
    since, checkpoints = overdue_since(facts), facts.checkpoints
    if since is None or checkpoints.failed:
        return
    lasting_ms = facts.ms_since(checkpoints.begun_at) if checkpoints.begun_at else None
    if lasting_ms is not None and checkpoints.newest and lasting_ms < checkpoints.newest.duration_ms:
        return
    under_way = "No checkpoint has failed since. A failure now would repeat all work since the last was triggered."
    remedy = ""
    if lasting_ms is not None:
        under_way = f"One has been in progress for {_pending(facts)}: {_acknowledged(checkpoints)}. {under_way}"
        remedy = "See which subtasks it waits for."
    yield Finding(
        sentence=f"{_overdue_text(facts, since)} {under_way}",
        checkpoint=checkpoints.begun_pk,
        since=since,
        remedy=remedy,
    )


def _acknowledged(checkpoints: CheckpointFacts) -> str:
    return f"{checkpoints.acknowledged} of {checkpoints.subtasks} subtasks have acknowledged"


def _overdue_text(facts: RunFacts, since: datetime) -> str:
    every = formats.duration(facts.checkpoints.interval_ms)
    return f"No checkpoint has completed for {facts.age(since)}; one is due every {every}."


def unreadable(facts: RunFacts) -> Iterator[Finding]:
    folders = facts.live.unreadable
    if folders:
        yield Finding(
            sentence=f"The manifest of {', '.join(folders)} cannot be read: it cannot be restored, and files that it "
            "may need are kept. Repair the manifest, or discard the savepoint."
        )


def unmerged(facts: RunFacts) -> Iterator[Finding]:
    """A merge of state files that failed, or whose result differed from the state, in this attempt."""
    for uid, step in facts.live.operators.items():
        if count := step.counters.get("failed_merges"):
            yield Finding(
                sentence=f"Merges of state files of {facts.operator(uid)} that failed in this attempt: {count}. "
                "No row is lost: the files stay as they were, and the next checkpoint writes the whole state.",
                operator=uid,
            )
