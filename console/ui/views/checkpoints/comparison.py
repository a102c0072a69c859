"""The page that compares two checkpoints of a job."""

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_safe

from console import formats
from console.accounts.refusals import Refused
from console.checkpoints.comparison import MEASURES, Change, OperatorChange, least_notable
from console.checkpoints.models import Status
from console.checkpoints.selectors import job_checkpoints
from console.formats import Quantity
from console.jobs.models import Job
from console.pages.comparisons import load_comparison
from console.ui.live.page import page, require_login
from console.ui.paging import text, whole_number


@dataclass(frozen=True, slots=True)
class Cell:
    """The value on the newer side, and the signed difference as text, or "" if it is not notable."""

    value: Quantity
    difference: str


@dataclass(frozen=True, slots=True)
class Line:
    """An operator of the table; the cells are in the order of `MEASURES`."""

    change: OperatorChange
    cells: tuple[Cell, ...]


#: The column heads of `MEASURES`.
HEADS = (
    "Start delay", "Alignment", "Pre-barrier", "Sync", "Async", "State", "Written", "Rows of state", "Subtasks",
    "In flight",
)  # fmt: skip


@require_safe
@require_login
def compare(request: HttpRequest, pk: int) -> HttpResponse:
    """Compares the checkpoints `base` and `other` in the address; without them, the two newest completed ones."""
    job = get_object_or_404(Job, pk=pk)
    sides = {name: text(request.GET.get(name)) for name in ("base", "other")}
    if not any(sides.values()):
        newest = job_checkpoints(job).filter(status=Status.COMPLETED).order_by("-number")
        numbers = sorted(newest.values_list("number", flat=True)[:2])
        sides = dict(zip(sides, map(str, numbers), strict=False)) if len(numbers) == 2 else sides
    context = {"job": job, "given": sides, "heads": HEADS}
    if not all(sides.values()):
        return page(request, "checkpoints/compare.html", context)
    try:
        comparison = load_comparison(
            job, whole_number(sides["base"]) or 0, whole_number(sides["other"]) or 0, timezone.now()
        )
    except Refused as refused:
        return page(request, "checkpoints/compare.html", {**context, "refusal": refused.detail})
    figures = [
        ("Duration", cell("duration_ms", comparison.duration_ms), formats.duration(comparison.duration_ms.base)),
        ("Full size", cell("state_bytes", comparison.state_bytes), _size(comparison.state_bytes.base)),
        ("Written", cell("written_bytes", comparison.written_bytes), _size(comparison.written_bytes.base)),
    ]
    context |= {
        "comparison": comparison,
        "figures": figures,
        "notable": [_line(change) for change in comparison.notable],
        "equal": [_line(change) for change in comparison.equal],
    }
    return page(request, "checkpoints/compare.html", context)


def _line(change: OperatorChange) -> Line:
    return Line(change, tuple(cell(name, change.changes[name]) for name in MEASURES))


def cell(name: str, change: Change) -> Cell:
    difference = ""
    if change.is_notable(least_notable(name)):
        moved = change.difference
        if moved is None:
            difference = "not known before" if change.base is None else f"was {_write(name, change.base)}"
        else:
            difference = f"{'+' if moved > 0 else '−'}{_write(name, abs(moved))}"
    return Cell(_write(name, change.other), difference)


def _write(name: str, value: float | None) -> Quantity:
    if name.endswith("_ms"):
        return formats.duration(value)
    return _size(value) if name.endswith("_bytes") else Quantity(formats.count(None if value is None else round(value)))


def _size(value: float | None) -> Quantity:
    return formats.size(None if value is None else round(value))
