"""The log of the job master of a run, in the lines that job masters write."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings

from console.jobs.models import Run

_LAUNCHED = {"every slot is there": "connected", "every slot is deployed": "deployed"}  #: steps of a launch by event
#: Class of the result of an attempt, by its outcome.
_RESULTS = {"failed": "AttemptFailed", "ended": "Ended"}


def write(run: Run) -> None:
    """Writes the log where the page of the run reads it. Lines follow from attempts and failed savepoints."""
    folder = Path(settings.WEIR_LOGS)
    folder.mkdir(parents=True, exist_ok=True)
    lines = sorted(_lines(run), key=lambda line: str(line["timestamp"]))
    (folder / f"run-{run.pk}.log").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _lines(run: Run) -> Iterator[dict[str, Any]]:
    for attempt in run.attempts.select_related("restored_checkpoint"):
        began, token = attempt.started_at, attempt.token
        assert began is not None
        if restored := attempt.restored_checkpoint:
            yield _line(run, began, "info", "restoring", checkpoint=restored.number, kind=restored.kind, token=token)
        for event, step in _LAUNCHED.items():
            if attempt.launch:
                reached = datetime.fromtimestamp(attempt.launch[step] / 1000, UTC)
                yield _line(run, reached, "info", event, token=token)
        ended = attempt.ended_at
        if ended is None:
            continue
        if run.failure and attempt.outcome == "failed" and attempt.reason == run.failure["message"]:
            figures = {name: run.failure.get(name) for name in ("slot", "traceback")}
            yield _line(run, ended, "error", "slot failed", detail=attempt.reason, **figures)
        if attempt.outcome == "failed":
            yield _line(run, ended, "error", "attempt fails", detail=attempt.reason, token=token)
        if drained := run.checkpoints.filter(kind="drain", completed_at__lte=ended).first():
            event = "savepoint of the operation is complete"
            yield _line(run, drained.completed_at, "info", event, checkpoint=drained.number)
        yield _line(run, ended, "info", "attempt ended", token=token, result=_RESULTS.get(attempt.outcome, ""))
    for savepoint in run.checkpoints.filter(status="failed", completed_at__isnull=False).exclude(kind="checkpoint"):
        yield _line(
            run, savepoint.completed_at, "warning", "operation failed", reason=savepoint.reason, detail=savepoint.detail
        )


def _line(run: Run, at: Any, level: str, event: str, **more: Any) -> dict[str, Any]:
    return {**more, "event": event, "level": level, "run": run.pk, "timestamp": at.isoformat()}
