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


def write_slots(run: Run, folder: Path) -> None:
    """Writes the logs of the slots of the last report below `folder`, and moves all paths of slots there."""
    for lost in run.attempts.filter(detail__has_key="slot_log"):
        assert lost.detail
        lost.detail["slot_log"] = lost.detail["slot_log"].replace("/scratch", str(folder), 1)
        lost.save(update_fields=["detail"])
    if not run.live or run.ended_at:
        return
    for slot in run.live["slots"]:
        application, executor = run.live["spark_application"], slot["executor"]
        file = folder / application / executor / "stderr"
        file.parent.mkdir(parents=True)
        began = run.attempts.latest("token").started_at
        assert began is not None
        lines = [_line(run, began, "info", "slot started", slot=slot["index"], address=slot["address"])]
        for savepoint in run.checkpoints.filter(token=run.token).exclude(kind="checkpoint").order_by("number"):
            fields = {"slot": slot["index"], "operation": savepoint.kind, "checkpoint": savepoint.number}
            lines.append(_line(run, savepoint.triggered_at, "info", "operation taken", **fields))
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        slot["log"] = str(file)
    run.save(update_fields=["live"])


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


def _line(run: Run, at: Any, level: str, event: str, **fields: Any) -> dict[str, Any]:
    return {**fields, "event": event, "level": level, "run": run.pk, "timestamp": at.isoformat()}
