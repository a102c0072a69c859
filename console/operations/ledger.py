"""Changes of definitions as entries of the ledger: operations that have already taken effect."""

from collections.abc import Mapping
from typing import Any

import structlog
from django.dispatch import receiver

from console.accounts.models import User
from console.jobs.changes import definition_changed
from console.jobs.models import Job
from console.operations.models import Operation
from console.operations.operation_type import save_succeeded


@receiver(definition_changed)
def record_change(
    sender: type[Job],
    kind: str,
    user: User,
    job: Job,
    changes: Mapping[str, tuple[Any, Any]],
    reason: str,
    request_key: str | None,
    **kwargs: Any,
) -> None:
    request_id = structlog.contextvars.get_contextvars().get("request_id", "")
    row = Operation(
        job=job, kind=kind, requested_by=user, reason=reason, request_id=request_id, idempotency_key=request_key
    )
    save_succeeded(row, {"changes": {name: list(values) for name, values in changes.items()}})
