"""The newest restart of a run, which the head of its job's page names for a while: a sick job never looks well."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from console import formats
from console.formats import Quantity
from console.jobs.models import AttemptOutcome, Run
from console.operations.lines import AttemptLine
from runtime.core.job.lifecycle import FLOWING_STATES

SHOWN: Final = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class LastRestart:
    """A restart of a run whose records flow again.

    Args:
        cause: first clause of the reason for which the attempt before ended.
        restored: the checkpoint or savepoint that the attempt restored; "" if none is recorded.
        down: time from the failure to the first checkpoint of the attempt; None before that checkpoint.
    """

    began: datetime
    cause: str
    restored: str
    down: Quantity | None


def last_restart(
    run: Run | None, attempts: Sequence[AttemptLine], newest_token: int | None, restarts_ms: Sequence[float],
    now: datetime,
) -> LastRestart | None:  # fmt: skip
    """The restart that began the present attempt, for `SHOWN`. `attempts`: of the run, newest first.

    `newest_token`: the attempt of the job's newest checkpoint. `restarts_ms`: the first is that of the newest failure.
    """
    if run is None or run.run_state not in FLOWING_STATES or len(attempts) < 2:
        return None
    present, before = attempts[:2]
    began = present.started_at
    if began is None or now - began > SHOWN or before.outcome not in (AttemptOutcome.FAILED, AttemptOutcome.LOST):
        return None
    is_known = before.outcome == AttemptOutcome.FAILED and newest_token == present.token and restarts_ms
    return LastRestart(
        began=began,
        cause=before.reason.partition(":")[0] or "the attempt before ended",
        restored=present.restored,
        down=formats.duration(restarts_ms[0]) if is_known else None,
    )
