"""The task that answers a query on a checkpoint's state: it claims the row, runs the PySpark stage and stores the
table.
"""

from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings

from console.celery import is_shutting_down
from console.checkpoints import state_queries, storage
from console.checkpoints.models import StateQuery
from console.jobs import stages
from console.jobs.services import parameter_schema
from console.runs.db_retry import ignore_outage, retry_until_reachable
from console.runs.lease import new_lease_owner
from console.runs.scratch import scratch_folder
from runtime.access.redaction import redact_json


def answer(query_id: int) -> None:
    """Answers a queued query. Any other state means a repeated message, which is ignored."""
    owner = new_lease_owner()
    query = state_queries.claim(query_id, owner)
    if query is None:
        return

    def still_wanted(progress: Any) -> bool:
        return ignore_outage(partial(state_queries.renew, query_id, owner, progress)) is not False

    try:
        with scratch_folder(f"state-{query.pk}", query.losses) as scratch:
            table = stages.run(_stage(query, scratch), still_wanted)
        end = partial(state_queries.succeed, query.pk, owner, _redact(query, table))
    except stages.StageInterrupted:
        end = partial(state_queries.release, query.pk, owner)
    except stages.StageFailed as failed:
        end = partial(state_queries.fail, query.pk, owner, _error(query, failed))
    retry_until_reachable(end, is_shutting_down)


def _stage(query: StateQuery, scratch: dict[str, str]) -> stages.StageCommand:
    checkpoint = query.checkpoint
    return stages.StageCommand(
        arguments=["state", "--checkpoint", f"{storage.job_uri(checkpoint.job_id)}/{checkpoint.path}"],
        log=Path(settings.WEIR_LOGS) / f"state-query-{query.pk}.log",
        timeout_s=settings.WEIR_STATE_QUERY_TIMEOUT_S,
        stdin=query.request,
        environment=scratch,
        result="table",
    )


def _error(query: StateQuery, failed: stages.StageFailed) -> dict[str, Any]:
    """The error to show. If the checkpoint was discarded meanwhile, the error names the discard, not a missing file."""
    checkpoint = query.checkpoint
    checkpoint.refresh_from_db(fields=["discarded_at"])
    if checkpoint.discarded_at is not None:
        detail = f"{str(checkpoint).capitalize()} was discarded before its state was read."
        return {"code": "no-state", "field": "", "detail": detail}
    error: dict[str, Any] = _redact(query, failed.error)
    return error


def _redact(query: StateQuery, value: Any) -> Any:
    version = query.checkpoint.run.version
    return redact_json(value, version.params, parameter_schema(version))
