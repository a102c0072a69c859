"""Filters of a job's checkpoints, the same for pages and API. Each filter has an index (`weir_checkpoint_*`)."""

import re
from collections.abc import Mapping
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema_field

from console.checkpoints.models import (
    ABORT_REASON,
    ABORTED,
    NOT_FAILURES,
    REVIEW_STATES,
    SUPERSEDED,
    SUPERSEDED_REASONS,
    Checkpoint,
    Kind,
    Status,
)
from console.jobs.models import Job, Run, choices
from runtime.core.snapshot.failure_reason import FailureReason

MAX_BIGINT: Final = 2**63 - 1
FAILURE_REASONS: Final = tuple(reason for reason in FailureReason if reason not in NOT_FAILURES)
OUTCOMES: Final = (*(status.value for status in Status), ABORTED, SUPERSEDED)
OUTCOME_CONDITIONS: Final[Mapping[str, Q]] = {
    **{status.value: Q(status=status.value) for status in (Status.IN_PROGRESS, Status.COMPLETED)},
    Status.FAILED.value: Q(status=Status.FAILED.value, reason__in=FAILURE_REASONS),
    ABORTED: Q(status=Status.FAILED.value, reason=ABORT_REASON),
    SUPERSEDED: Q(status=Status.FAILED.value, reason__in=SUPERSEDED_REASONS),
}
_MS: Final = {"ms": 1, "": 1, "s": 1_000, "min": 60_000, "h": 3_600_000}
_BYTES: Final = {"B": 1, "": 1, **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)}}
_QUANTITY: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]*)", re.ASCII)


@extend_schema_field({"type": "integer", "minimum": 0, "maximum": MAX_BIGINT})
class WholeNumber(filters.Filter):
    """A filter by an integer from 0. Django's own would truncate 1.5 to 1."""

    field_class = forms.IntegerField

    def __init__(self, **options: Any) -> None:
        super().__init__(min_value=0, max_value=MAX_BIGINT, **options)


class QuantityField(forms.CharField):
    """A number with a unit, as an integer in the smallest unit."""

    def __init__(self, *, units: Mapping[str, int], **options: Any) -> None:
        super().__init__(**options)
        self._units = {unit.lower(): factor for unit, factor in units.items()}
        self._names = ", ".join(unit for unit in units if unit)

    def clean(self, value: Any) -> int | None:
        text = super().clean(value).strip()
        if not text:
            return None
        match = _QUANTITY.fullmatch(text)
        factor = self._units.get(match[2].lower()) if match else None
        if match is None or factor is None:
            raise ValidationError(f"Enter a number with one of the units {self._names}, such as 2{self._names[-2:]}.")
        return min(round(float(match[1]) * factor), MAX_BIGINT)


@extend_schema_field({"type": "string", "pattern": rf"^\d{{1,15}}(\.\d{{1,6}})? *({'|'.join(_MS)})$"})
class Duration(filters.Filter):
    """A duration in ms, or with a unit: 1500, 2s, 3min."""

    field_class = QuantityField

    def __init__(self, **options: Any) -> None:
        super().__init__(units=_MS, **options)


@extend_schema_field({"type": "string", "pattern": rf"^\d{{1,15}}(\.\d{{1,6}})? *({'|'.join(_BYTES)})$"})
class Size(filters.Filter):
    """A size in bytes, or with a unit: 4096, 10MiB."""

    field_class = QuantityField

    def __init__(self, **options: Any) -> None:
        super().__init__(units=_BYTES, **options)


class CheckpointFilter(filters.FilterSet):
    """Checkpoints by kind, state, reason, time, duration, size, run, version, review, name, pin or number.

    The filters that differ from a column: `outcome` distinguishes failed checkpoints from aborted and superseded
    checkpoints, `version` is the number of the job's version, and `restorable` checkpoints have completed and are not
    discarded.
    """

    kind = filters.ChoiceFilter(choices=choices(Kind))
    outcome = filters.ChoiceFilter(choices=[(name, name) for name in OUTCOMES], method="of_outcome")
    reason = filters.ChoiceFilter(choices=choices(FailureReason), method="of_reason")
    restorable = filters.BooleanFilter(method="of_restorable")
    review_state = filters.ChoiceFilter(choices=REVIEW_STATES)
    triggered__gte = filters.IsoDateTimeFilter(field_name="triggered_at", lookup_expr="gte")
    triggered__lt = filters.IsoDateTimeFilter(field_name="triggered_at", lookup_expr="lt")
    slower_than = Duration(field_name="duration_ms", lookup_expr="gt", label="ms, or with a unit: 2s")
    larger_than = Size(field_name="size_bytes", lookup_expr="gt", label="bytes, or with a unit: 10MiB")
    name = filters.CharFilter(method="of_name", max_length=100, label="part of the name")
    pinned = filters.BooleanFilter(method="of_pinned")
    run = WholeNumber()
    version = WholeNumber(method="of_version")
    number = WholeNumber()

    class Meta:
        model = Checkpoint
        fields = ()

    def __init__(self, *args: Any, job: Job | None = None, **options: Any) -> None:
        """`job`: the job of all rows. Views of the API have the job, or a run, in their route."""
        super().__init__(*args, **options)
        route = {} if self.request is None else self.request.parser_context["kwargs"]
        names = {"job": "job_id", "run": "pk"}
        self._scope = {names[name]: pk for name, pk in route.items()} if job is None else {"job_id": job.pk}

    def of_outcome(self, rows: QuerySet[Checkpoint], name: str, value: str) -> QuerySet[Checkpoint]:
        return rows.filter(OUTCOME_CONDITIONS[value])

    def of_reason(self, rows: QuerySet[Checkpoint], name: str, value: str) -> QuerySet[Checkpoint]:
        return rows.filter(status=Status.FAILED.value, reason=value)

    def of_restorable(self, rows: QuerySet[Checkpoint], name: str, value: bool) -> QuerySet[Checkpoint]:
        condition = Q(status=Status.COMPLETED.value, discarded_at=None)
        return rows.filter(condition if value else ~condition)

    def of_name(self, rows: QuerySet[Checkpoint], name: str, value: str) -> QuerySet[Checkpoint]:
        return rows.exclude(name="").filter(name__icontains=value)

    def of_pinned(self, rows: QuerySet[Checkpoint], name: str, value: bool) -> QuerySet[Checkpoint]:
        return rows.filter(pinned_at__isnull=not value)

    def of_version(self, rows: QuerySet[Checkpoint], name: str, value: int) -> QuerySet[Checkpoint]:
        runs = Run.objects.filter(version__number=value, **self._scope)
        # Postgres estimates the number of rows by the ids. With a subquery it may read the whole history of the job.
        return rows.filter(run__in=list(runs.values_list("pk", flat=True)))
