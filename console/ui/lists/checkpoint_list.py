"""The list of a job's checkpoints: filters from the address, and a page of the rows that match."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import QuerySet
from django.http import QueryDict

from console import formats
from console.checkpoints.filters import OUTCOMES, CheckpointFilter
from console.checkpoints.models import Checkpoint, Kind, ReviewState
from console.checkpoints.selectors import checkpoint_table
from console.jobs.models import Job, JobVersion, Run
from console.ui.paging import TablePage, by_number, whole_number
from runtime.core.snapshot.failure_reason import FailureReason

ROWS_PER_PAGE: Final = 50
MAX_CHOICES: Final = 50  #: newest runs and versions in the choices; others are filtered by their address
MAX_COUNTED: Final = 1_000  #: a long history has too many rows to count


@dataclass(frozen=True, slots=True)
class Choice:
    """An option of a filter: its value in the address, and its text."""

    value: str
    text: str
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class FilterField:
    """A filter in the form. Without choices it is a text field of the given input `type`."""

    name: str
    label: str
    value: str
    errors: tuple[str, ...]
    choices: tuple[Choice, ...] = ()
    type: str = "text"
    hint: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointList:
    """`page` is None if a filter is invalid. `chosen`: number of filters in use.

    `matching`: number of rows that match them, as text; "" without filters.
    """

    fields: tuple[FilterField, ...]
    page: TablePage[Checkpoint] | None
    chosen: int
    matching: str


def filtered_checkpoints(job: Job, query: QueryDict) -> CheckpointList:
    """The list for the parameters of `query`. At most five queries."""
    data = {name: query.get(name, "").replace("\0", "").strip() for name in CheckpointFilter.base_filters}
    filters = CheckpointFilter(data, queryset=checkpoint_table(job), job=job)
    page = by_number(filters.qs, whole_number(query.get("before")), ROWS_PER_PAGE) if filters.is_valid() else None
    errors = {name: tuple(str(text) for text in texts) for name, texts in filters.form.errors.items()}
    fields = _fields(job, data, errors)
    count = sum(bool(field.value) for field in fields)
    return CheckpointList(fields, page, count, _matching(page, filters.qs) if page and count else "")


def _matching(page: TablePage[Checkpoint], rows: QuerySet[Checkpoint]) -> str:
    """The number of `rows`, of which `page` is a part."""
    is_whole = page.first and page.older is None
    number = len(page.rows) if is_whole else rows[: MAX_COUNTED + 1].count()
    return formats.count(number) if number <= MAX_COUNTED else f"more than {formats.count(MAX_COUNTED)}"


def _fields(job: Job, data: Mapping[str, str], errors: Mapping[str, tuple[str, ...]]) -> tuple[FilterField, ...]:
    runs = Run.objects.filter(job=job).order_by("-pk").values_list("pk", flat=True)[:MAX_CHOICES]
    versions = JobVersion.objects.filter(job=job).order_by("-number").values_list("number", flat=True)[:MAX_CHOICES]

    def field(name: str, label: str, options: Any = (), **attributes: str) -> FilterField:
        value = data.get(name, "")
        texts = dict.fromkeys([*(str(option) for option in options), *([value] if options and value else [])])
        choices = tuple(Choice(text, text.replace("_", " "), text == value) for text in texts)
        return FilterField(name, label, value, errors.get(name, ()), choices, **attributes)

    return (
        field("kind", "Kind", [kind.value for kind in Kind]),
        field("outcome", "Status", OUTCOMES),
        field("reason", "Reason", sorted(reason.value for reason in FailureReason)),
        field("name", "Name contains"),
        field("pinned", "Pinned", ["true", "false"]),
        field("review_state", "Review", [state.value for state in ReviewState]),
        field("run", "Run", list(runs)),
        field("version", "Version", list(versions)),
        field("triggered__gte", "From (UTC)", type="datetime-local"),
        field("triggered__lt", "Until (UTC)", type="datetime-local"),
        field("slower_than", "Slower than", hint="2s"),
        field("larger_than", "Larger than", hint="10MiB"),
    )
