"""Changes of definitions by users. `console.operations.ledger`, a layer above, records them."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from django.dispatch import Signal

from console.accounts.models import User
from console.jobs.models import Job

#: Sent within the transaction of the change, so that no change is without its entry.
definition_changed: Final = Signal()
MAX_REASON_LENGTH: Final = 1000
#: `edit`: facts about a job and its archive; `define`: its creation and its versions.
ChangeKind = Literal["edit", "define"]


def announce(
    kind: ChangeKind,
    user: User,
    job: Job,
    changes: Mapping[str, tuple[Any, Any]],
    reason: str = "",
    request_key: str | None = None,
) -> None:
    """Announces `changes`: by name, the JSON value before and after. Secrets must be masked.

    `request_key`: idempotency key of the request, by which its repetition finds the entry.
    """
    definition_changed.send(
        sender=Job, kind=kind, user=user, job=job, changes=changes, reason=reason, request_key=request_key
    )
