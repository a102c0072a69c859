"""The newest restart of a run, which the head of its job's page names for a while: a sick job never looks well."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from console import formats
from console.formats import Quantity
from console.health.findings import Verdict
from console.health.rules.attempts import RESTART_CAUSES
from console.jobs.models import AttemptOutcome, Run
from console.pages.lines import AttemptLine
from runtime.core.job.lifecycle import RunState

SHOWN: Final = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class LastRestart:
    """A restart of a run whose records flow again.

    Args:
        failed_at: end of the attempt before.
        resumed_at: since when records flow again; None if it is not known.
        cause: the reason for which the attempt before ended.
        restored: the checkpoint or savepoint that the attempt restored; "" if none is recorded.
        down: time from the failure to the first checkpoint of the attempt; None before that checkpoint, and for an
            attempt that began with empty state, whose first checkpoint waits for an interval.
    """

    failed_at: datetime
    resumed_at: datetime | None
    cause: str
    restored: str
    down: Quantity | None


def last_restart(
    run: Run | None, attempts: Sequence[AttemptLine], verdict: Verdict, now: datetime
) -> LastRestart | None:
    """The restart that began the present attempt: until its first checkpoint, and for `SHOWN` after records flow again.

    The rows of attempts know the end of the one before, which waits and the restore follow: they may take hours.

    None while a finding names restarts that come again and again: their end is not known.

    `attempts`: the newest of the run, newest first; two are enough.
    """
    is_over = not RESTART_CAUSES & {finding.rule for finding in verdict.findings}
    if run is None or run.run_state is not RunState.RUNNING or len(attempts) < 2 or not is_over:
        return None
    present, before = attempts[:2]
    if present.started_at is None or before.outcome not in (AttemptOutcome.FAILED, AttemptOutcome.LOST):
        return None
    failed_at = before.ended_at or present.started_at
    first = present.first_checkpoint_at
    is_known = before.outcome == AttemptOutcome.FAILED and present.restored and first is not None and first > failed_at
    resumed_at = first if is_known else None
    if first is not None and now - (resumed_at or present.started_at) > SHOWN:
        return None
    return LastRestart(
        failed_at=failed_at,
        resumed_at=resumed_at,
        cause=before.reason.strip().rstrip(".") or "the attempt before ended",
        restored=present.restored,
        down=formats.duration((resumed_at - failed_at) / timedelta(milliseconds=1)) if resumed_at else None,
    )
