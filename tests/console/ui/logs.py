"""The log of the job master of a run, in the lines that job masters write."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings

from console.jobs.models import Run


def write(run: Run) -> None:
    """Writes the log where the page of the run reads it. Lines follow from attempts and failed savepoints."""
    folder = Path(settings.WEIR_LOGS)
    folder.mkdir(parents=True, exist_ok=True)
    lines = sorted(_lines(run), key=lambda line: str(line["timestamp"]))
    (folder / f"run-{run.pk}.log").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _lines(run: Run) -> Iterator[dict[str, Any]]:
    for attempt in run.attempts.all():
        assert attempt.started_at is not None
        for event in ("every slot is there", "every slot is deployed"):
            yield _line(run, attempt.started_at, "info", event, token=attempt.token)
        if attempt.outcome == "failed" and attempt.ended_at is not None:
            yield _line(run, attempt.ended_at, "warning", "attempt fails", detail=attempt.reason, token=attempt.token)
    for savepoint in run.checkpoints.filter(status="failed", completed_at__isnull=False).exclude(kind="checkpoint"):
        yield _line(
            run, savepoint.completed_at, "warning", "operation failed", reason=savepoint.reason, detail=savepoint.detail
        )


def _line(run: Run, at: Any, level: str, event: str, **more: Any) -> dict[str, Any]:
    return {**more, "event": event, "level": level, "run": run.pk, "timestamp": at.isoformat()}
