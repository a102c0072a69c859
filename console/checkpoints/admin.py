"""Checkpoints in the admin. Columns of the job master are read-only.

`console.operations.admin` registers the class and adds reviews, names and pins, which are operations.
"""

from typing import Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.accounts.read_only import NoAddOrDelete, RequestingAdmin
from console.checkpoints.filters import OUTCOME_CONDITIONS, OUTCOMES
from console.checkpoints.models import Checkpoint, ReviewState, Status
from console.estimated_count import EstimatedPaginator
from console.jobs.models import Job
from runtime.core.snapshot.failure_reason import FailureReason

REVIEW_FIELDS = ("review_state", "review_note")
_EDITABLE_FIELDS = (*REVIEW_FIELDS, "name", "note")
_GROUPED_FIELDS = ("id", "reviewer", "reviewed_at", "pinned_at", "pinned_by")  #: not among those of the job master
_READONLY_FIELDS = tuple(
    "outcome" if field.name == "status" else field.name
    for field in Checkpoint._meta.fields
    if field.name not in _EDITABLE_FIELDS
)


class OutcomeFilter(admin.SimpleListFilter):
    """Filters by the outcome that pages and REST show: an aborted checkpoint has not failed."""

    title = "outcome"
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(outcome, outcome.replace("_", " ").capitalize()) for outcome in OUTCOMES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Checkpoint]) -> QuerySet[Checkpoint]:
        condition = OUTCOME_CONDITIONS.get(self.value() or "")
        return queryset if condition is None else queryset.filter(condition)


class ReasonFilter(admin.SimpleListFilter):
    """Filters by every `FailureReason`. Listing only the reasons that occur would read every row."""

    title = "reason"
    parameter_name = "reason"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(reason.value, reason.value.replace("_", " ").capitalize()) for reason in FailureReason]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Checkpoint]) -> QuerySet[Checkpoint]:
        return queryset.filter(reason=self.value()) if self.value() in list(FailureReason) else queryset


MAX_FOUND: Final = 1_000  #: matches of each part of a search
MAX_JOBS: Final = 50
MAX_DIGITS: Final = 19  #: of a number in a column of 64 bits


def search(rows: QuerySet[Checkpoint], term: str) -> QuerySet[Checkpoint]:
    """The `rows` with `term` as their number or reason, or in their name, their note, their review or the name of their
    job.

    Each part has an index: most rows have none of these texts. A single condition over all columns reads every row.
    """
    jobs = list(Job.objects.filter(name__icontains=term).values_list("pk", flat=True)[:MAX_JOBS])
    parts = [
        rows.exclude(name="").filter(Q(name__icontains=term) | Q(note__icontains=term)),
        rows.exclude(review_state=ReviewState.UNREVIEWED.value).filter(review_note__icontains=term),
        rows.filter(job__in=jobs).order_by("-number"),
    ]
    if term.isdecimal() and len(term) < MAX_DIGITS:
        parts.append(rows.filter(number=int(term)))
    if term in list(FailureReason):
        parts.append(rows.filter(status=Status.FAILED.value, reason=term))
    keys = {pk for part in parts for pk in part.values_list("pk", flat=True)[:MAX_FOUND]}
    return rows.filter(pk__in=keys)


class CheckpointAdmin(NoAddOrDelete, RequestingAdmin):
    list_display = (
        "job", "number", "kind", "outcome", "review_state", "name", "triggered", "duration", "size", "reason",
        "reviewer",
    )  # fmt: skip
    list_display_links = ("number",)
    list_filter: ClassVar[Any] = (
        "review_state", OutcomeFilter, "kind", ReasonFilter, "job__pipeline",
        ("triggered_at", admin.DateFieldListFilter),
    )  # fmt: skip
    show_full_result_count = False
    paginator = EstimatedPaginator
    list_per_page = 50
    list_select_related = ("job", "reviewer")
    search_fields = ("job__name",)  # shows the field; `search` looks for the text
    search_help_text = "Job, number, reason of a failure, name, note, or text of a review"
    ordering = ("-triggered_at",)
    readonly_fields = _READONLY_FIELDS
    fieldsets: ClassVar[Any] = (
        ("Review", {"fields": (*REVIEW_FIELDS, "reviewer", "reviewed_at")}),
        (
            "Checkpoint",
            {"fields": tuple(name for name in _READONLY_FIELDS if name not in _GROUPED_FIELDS)},
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Checkpoint]:
        """The list needs no figures by operator; the page of a checkpoint reads them when it shows them."""
        return super().get_queryset(request).defer("acknowledgements", "operators")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Checkpoint], search_term: str
    ) -> tuple[QuerySet[Checkpoint], bool]:
        return (search(queryset, search_term.strip()) if search_term.strip() else queryset), False

    def action_checkbox(self, obj: Checkpoint) -> SafeString:
        """The box of Django, which renders two templates for it: a fifth of the time of the list."""
        return format_html(
            '<input type="checkbox" name="{}" value="{}" class="action-select" aria-label="Select this object for an '
            'action - {}">', ACTION_CHECKBOX_NAME, obj.pk, obj,
        )  # fmt: skip

    def view_on_site(self, obj: Checkpoint) -> str:
        return reverse("ui:checkpoint", args=(obj.pk,))

    @admin.display(ordering="triggered_at", description="triggered (UTC)")
    def triggered(self, row: Checkpoint) -> str:
        """The trigger time to the second, since checkpoints are seconds apart."""
        return f"{row.triggered_at:%Y-%m-%d %H:%M:%S}"

    @admin.display(ordering="duration_ms", description="duration")
    def duration(self, row: Checkpoint) -> str:
        if row.duration_ms is None:
            return ""
        return f"{row.duration_ms} ms" if row.duration_ms < 1000 else f"{row.duration_ms / 1000:.2f} s"

    @admin.display(ordering="size_bytes", description="size")
    def size(self, row: Checkpoint) -> str:
        return "" if row.size_bytes is None else filesizeformat(row.size_bytes)
