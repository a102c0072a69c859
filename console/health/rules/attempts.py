"""Rules on the attempts of a run: its failure, outages, memory, restart loops."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from console import formats
from console.health.facts import FailedAttempt, RunFacts
from console.health.findings import Finding, Level
from runtime.core.job.lifecycle import RunState
from runtime.core.job.restart_strategy import MIN_RUN_WITHIN_MEMORY_MS, OUTAGE_CODE, SLOT_OUT_OF_MEMORY_CODE

#: Failed attempts within a time that make a loop: in quick succession, or again and again with progress in between.
LOOPS: Final = ((3, timedelta(minutes=10)), (5, timedelta(hours=1)))
RESTART_CAUSES: Final = frozenset({"outage", "memory", "restart-loop"})  #: rules on failures that come again
MAX_ATTEMPTS: Final = 20  #: failed attempts that facts hold at most
#: Causes that a person must remove, by the texts of ENOSPC, EDQUOT and EROFS in messages of outages; with the remedy.
_FULL: Final = ("Storage is full", "Free space, or raise the quota: the run continues by itself.")
_READ_ONLY: Final = (
    "The file system is read-only",
    "Look for errors of the disk, and mount it writable: the run continues by itself.",
)
_STORAGE_CAUSES: Final = {
    "No space left on device": _FULL,
    "Disk quota exceeded": _FULL,
    "Read-only file system": _READ_ONLY,
}
_RECENT_MEMORY: Final = timedelta(milliseconds=MIN_RUN_WITHIN_MEMORY_MS)  #: a run that lasts longer is healthy again
_RECENT_OUTAGE: Final = timedelta(minutes=1)
_NOT_RUNNING: Final = (RunState.STARTING, RunState.RESTARTING)


def run_failed(facts: RunFacts) -> Iterator[Finding]:
    yield Finding(
        sentence=facts.failure or "The run failed.",
        level=Level.FAILED,
        operator=facts.failed_operator,
        since=facts.ended_at,
    )


def outage(facts: RunFacts) -> Iterator[Finding]:
    """Storage or a service that is away or full. Such attempts fail in a row, with short runs in between."""
    newest = facts.attempts[0] if facts.attempts else None
    if newest is None or newest.code != OUTAGE_CODE:
        return
    if facts.state not in _NOT_RUNNING and not _is_between_outages(facts, newest):
        return
    wait_ms = facts.ms_since(newest.next_at) if newest.next_at else 0.0
    following = f"the next attempt is in {formats.duration(-wait_ms)}" if wait_ms < 0 else "it is being retried now"
    cause, remedy = storage_cause(newest.message)
    by = f": {facts.operator(newest.operator)}" if newest.operator else ""
    yield Finding(
        sentence=f"{cause or 'Waiting for storage or a service'}{by}. {newest.message.rstrip('.')}. "
        f"Failed {newest.tries} times in a row; {following}. "
        f"{facts.not_counted('Such a failure')}The run continues by itself.",
        level=Level.FAILED if cause else Level.ATTENTION,
        operator=newest.operator,
        remedy=remedy,
    )


def storage_cause(message: str) -> tuple[str, str]:
    """Cause and remedy if `message` is of storage that takes no data until a person acts, else ("", "")."""
    return next((cause for text, cause in _STORAGE_CAUSES.items() if text in message), ("", ""))


def _is_between_outages(facts: RunFacts, newest: FailedAttempt) -> bool:
    """Whether the run runs again, but has completed no checkpoint since a repeated outage."""
    point = facts.checkpoints.newest
    is_recent = newest.tries > 1 and facts.now - newest.ended_at <= _RECENT_OUTAGE
    return is_recent and (point is None or point.completed_at < newest.ended_at)


def memory(facts: RunFacts) -> Iterator[Finding]:
    """Slots above their memory limit. The state hides them: between such failures the run is RUNNING."""
    newest = facts.attempts[0] if facts.attempts else None
    if newest is None or newest.code != SLOT_OUT_OF_MEMORY_CODE:
        return
    if facts.state not in _NOT_RUNNING and facts.now - newest.ended_at > _RECENT_MEMORY:
        return
    often = "" if newest.tries == 1 else f" {newest.tries} consecutive attempts have failed like this."
    yield Finding(
        sentence=f"{newest.message}{often} Each attempt restores the last checkpoint; no host was lost.",
        operator=newest.operator,
    )


def restart_loop(facts: RunFacts) -> Iterator[Finding]:
    """Repeated failures, and the cause that most of them share."""
    counted = [attempt for attempt in facts.attempts if attempt.code not in (OUTAGE_CODE, SLOT_OUT_OF_MEMORY_CODE)]
    windows = [(least, [a for a in counted if facts.now - a.ended_at <= window]) for least, window in LOOPS]
    recent = next((attempts for least, attempts in windows if len(attempts) >= least), None)
    if recent is None:
        return
    newest, first = recent[0], recent[-1]
    same = [attempt for attempt in recent if (attempt.code, attempt.operator) == (newest.code, newest.operator)]
    often = f"{len(recent)}{' or more' if len(recent) == MAX_ATTEMPTS else ''} times"
    span = facts.age(first.ended_at)
    where = f" in {facts.operator(newest.operator)}" if newest.operator else ""
    share = "each time" if len(same) == len(recent) else f"{len(same)} of them"
    point = facts.checkpoints.newest
    has_progress = point is not None and point.completed_at > first.ended_at
    progress = "" if has_progress else " No checkpoint has completed in between: the same work is repeated."
    yield Finding(
        sentence=f"Restart loop: failed {often} in {span}, {share}{where}: {newest.message.rstrip('.')}.{progress}",
        level=Level.ATTENTION if has_progress else Level.FAILED,
        operator=newest.operator,
        since=first.ended_at,
    )


def restart_number(facts: RunFacts) -> str:
    """The restart that follows the newest failure: restart 3 of 10, or restart 3 without a limit; "" if unknown.

    Restarts count failures in a row. An attempt is named by its token.
    """
    failures = facts.attempts[0].failures if facts.attempts else None
    if failures is None:
        return ""
    return f"restart {failures}" + (f" of {facts.max_restarts}" if facts.max_restarts is not None else "")


def restarting(facts: RunFacts) -> Iterator[Finding]:
    newest = facts.attempts[0] if facts.attempts else None
    if newest is None:
        yield Finding(sentence="The run is restarting.")
        return
    message = newest.message.rstrip(".")
    cause = (
        f"{facts.operator(newest.operator)}: {message}" if newest.operator else f"{message[:1].upper()}{message[1:]}"
    )
    since = facts.age(newest.ended_at)
    yield Finding(
        sentence=f"An attempt failed {since} ago, and {restart_number(facts) or 'a restart'} is under way. {cause}.",
        operator=newest.operator,
        since=newest.ended_at,
    )
