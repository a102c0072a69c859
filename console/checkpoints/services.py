"""The console's own writes to checkpoint rows: reviews, and the end of orphaned checkpoints.

Job masters write all other columns.
"""

from collections.abc import Iterable
from typing import Final

from django.db.models import F, Q
from django.db.models.functions import Now

from console.accounts.models import User
from console.checkpoints.models import Checkpoint, ReviewState, Status
from console.runs.lease import ago
from runtime.core.job.lifecycle import TERMINAL_STATES
from runtime.core.snapshot.failure_reason import FailureReason

#: Rows of a run that ended at least 5 s ago: its master records the end of run, checkpoints and operations separately.
RUN_ENDED: Final = Q(run__state__in=TERMINAL_STATES, run__ended_at__lte=ago(5))


def review(user: User, checkpoints: Iterable[int], state: ReviewState, note: str | None = None) -> int:
    """Sets the review of the checkpoints to `state`; `note` None keeps their notes. Returns the number of updated rows.

    Only the review columns are written, so that updates of the job master since the read survive.
    """
    changes = {} if note is None else {"review_note": note}
    rows = Checkpoint.objects.filter(pk__in=list(checkpoints))
    by, at = (None, None) if state is ReviewState.UNREVIEWED else (user, Now())
    return rows.update(review_state=state, reviewer=by, reviewed_at=at, **changes)


def fail_orphaned_checkpoints() -> int:
    """Fails checkpoints in progress whose master is gone: their run has a newer token or has ended.

    A master that died cannot record the failure, and a master with an older token can complete no checkpoint any more.
    """
    orphans = Checkpoint.objects.filter(RUN_ENDED | Q(token__lt=F("run__token")), status=Status.IN_PROGRESS)
    detail = "its job master was gone before it completed"
    return orphans.update(status=Status.FAILED, reason=FailureReason.SUSPENDED, detail=detail, completed_at=Now())
