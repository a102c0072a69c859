"""The page of one checkpoint."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from console.checkpoints.models import Checkpoint, Status
from console.ui.views.page import page_or_blocks, signed_in

_PHASES = ("alignment", "sync", "async")
_WIDTH = 160.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorLine:
    """One operator in a checkpoint. `bars` are (phase, x, width) of a small gantt, all on one scale."""

    uid: str
    name: str
    finished: str
    subtasks: int | None
    state_bytes: int | None
    share: float
    phases_ms: tuple[float | None, float | None, float | None]
    bars: tuple[tuple[str, float, float], ...]


@require_safe
@signed_in
def checkpoint(request: HttpRequest, pk: int) -> HttpResponse:
    rows = Checkpoint.objects.select_related("job", "run", "run__version", "reviewer")
    found = get_object_or_404(rows, pk=pk)
    context = {
        "section": "jobs",
        "checkpoint": found,
        "job": found.job,
        "lines": operator_lines(found),
        "newer": _beside(found, number__gt=found.number, order="number"),
        "older": _beside(found, number__lt=found.number, order="-number"),
    }
    settled = found.status != Status.IN_PROGRESS
    return page_or_blocks(request, "checkpoints/detail.html", "checkpoints/_live.html", context, settled=settled)


def operator_lines(checkpoint: Checkpoint) -> tuple[OperatorLine, ...]:
    """The operators in the order of the graph, where the version still knows them."""
    graph = checkpoint.run.version.graph or {}
    names = {o["uid"]: o["name"] for o in graph.get("operators", [])}
    order = list(names)
    rows = sorted(checkpoint.operators, key=lambda o: order.index(o["uid"]) if o["uid"] in names else len(order))
    largest = max((row.get("state_bytes") or 0 for row in rows), default=0)
    longest = max((sum(_phases(row)) for row in rows), default=0.0)
    return tuple(_line(row, names, largest, longest) for row in rows)


def _line(row: dict[str, Any], names: dict[str, str], largest: int, longest: float) -> OperatorLine:
    held = row.get("state_bytes")
    return OperatorLine(
        uid=row["uid"],
        name=names.get(row["uid"], row["uid"]),
        finished=row.get("finished", "running"),
        subtasks=row.get("subtasks"),
        state_bytes=held,
        share=round((held or 0) / largest * 72, 1) if largest else 0.0,
        phases_ms=(row.get("max_alignment_ms"), row.get("max_sync_ms"), row.get("max_async_ms")),
        bars=_bars(_phases(row), longest),
    )


def _phases(row: dict[str, Any]) -> tuple[float, ...]:
    return tuple(float(row.get(f"max_{phase}_ms") or 0) for phase in _PHASES)


def _bars(phases: tuple[float, ...], longest: float) -> tuple[tuple[str, float, float], ...]:
    bars, x = [], 0.0
    for phase, ms in zip(_PHASES, phases, strict=True):
        width = round(ms / longest * _WIDTH, 1) if longest else 0.0
        bars.append((phase, round(x, 1), width))
        x += width
    return tuple(bars)


def _beside(found: Checkpoint, *, order: str, **where: int) -> Checkpoint | None:
    return Checkpoint.objects.filter(job=found.job_id, **where).order_by(order).first()
