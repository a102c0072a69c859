"""What the console itself writes about checkpoints: what a person says about one, and the end of those nobody will end.

All else in their rows is written by job masters.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from django.db.models import F, Q
from django.db.models.functions import Now

from console.accounts.models import User
from console.checkpoints.models import Checkpoint, ReviewState, Status
from runtime.core.job.lifecycle import TERMINAL
from runtime.core.snapshot.manifest import FailureReason

_GRACE_S: Final = 5  #: a master records the end of its run and of its checkpoints apart


def review(user: User, checkpoints: Iterable[int], state: ReviewState, note: str | None = None) -> int:
    """Record a verdict; `note` None leaves the notes as they are. Only the review's columns are written.

    Writing a whole row would undo what the job master wrote since the row was read.
    """
    changes = {} if note is None else {"review_note": note}
    chosen = Checkpoint.objects.filter(pk__in=list(checkpoints))
    if state is ReviewState.UNREVIEWED:
        return chosen.update(review_state=state, reviewer=None, reviewed_at=None, **changes)
    return chosen.update(review_state=state, reviewer=user, reviewed_at=Now(), **changes)


def give_up_orphans() -> int:
    """Fail what is in progress under a master that is gone: its run has a newer token, or has ended.

    A master that dies cannot say it, and who holds an older token can complete nothing any more.
    """
    ended = Q(run__state__in=TERMINAL, run__ended_at__lte=Now() - timedelta(seconds=_GRACE_S))
    orphans = Checkpoint.objects.filter(ended | Q(token__lt=F("run__token")), status=Status.IN_PROGRESS)
    detail = "its job master was gone before it completed"
    return orphans.update(status=Status.FAILED, reason=FailureReason.SUSPENDED, detail=detail, completed_at=Now())
