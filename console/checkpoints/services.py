"""Reviewing checkpoints: what a person says about one, by whom and when."""

from collections.abc import Iterable

from django.db.models.functions import Now

from console.accounts.models import User
from console.checkpoints.models import Checkpoint, ReviewState


def review(user: User, checkpoints: Iterable[int], state: ReviewState, note: str | None = None) -> int:
    """Record a verdict; `note` None leaves the notes as they are. Only the review's columns are written.

    Writing a whole row would undo what the job master wrote since the row was read.
    """
    changes = {} if note is None else {"review_note": note}
    chosen = Checkpoint.objects.filter(pk__in=list(checkpoints))
    if state is ReviewState.UNREVIEWED:
        return chosen.update(review_state=state, reviewer=None, reviewed_at=None, **changes)
    return chosen.update(review_state=state, reviewer=user, reviewed_at=Now(), **changes)
