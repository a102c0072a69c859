"""The checkpoints that need a look, with filters that the review desk and the API share."""

from typing import Any, Final

from django.db.models import F, OuterRef, QuerySet, Subquery
from django_filters import rest_framework as filters

from console.checkpoints.models import CONCERNS, NEEDS_REVIEW, Checkpoint, Status
from console.jobs.models import Job

MAX_JOBS: Final = 50  #: matches of a part of a name
_COMPARED: Final = 20  #: checkpoints after a slow one, which have no concern for the same reason


class ReviewFilter(filters.FilterSet):
    """The review queue by concern, job or assignee."""

    concern = filters.ChoiceFilter(choices=CONCERNS, method="of_concern")
    job = filters.CharFilter(method="of_job", max_length=100, label="part of the name of the job")
    assignee = filters.CharFilter(field_name="assignee__username", max_length=150, label="user name")
    assigned = filters.BooleanFilter(field_name="assignee", lookup_expr="isnull", exclude=True)

    class Meta:
        model = Checkpoint
        fields = ()

    def of_concern(self, rows: QuerySet[Checkpoint], name: str, value: str) -> QuerySet[Checkpoint]:
        return rows.filter(concerns__contains=[value])

    def of_job(self, rows: QuerySet[Checkpoint], name: str, value: str) -> QuerySet[Checkpoint]:
        jobs = Job.objects.filter(name__icontains=value).values_list("pk", flat=True)
        return rows.filter(job__in=list(jobs[:MAX_JOBS]))


def review_queue() -> QuerySet[Checkpoint]:
    """Checkpoints with a concern whose review is open, newest first."""
    return Checkpoint.objects.filter(NEEDS_REVIEW).order_by("-pk")


def with_longest_later(rows: QuerySet[Checkpoint]) -> QuerySet[Checkpoint, Any]:
    """`rows` with `longest_later_ms`: only the first of several slow checkpoints has a concern, seldom the longest."""
    later = Checkpoint.objects.filter(
        job_id=OuterRef("job_id"), kind=OuterRef("kind"), status=Status.COMPLETED,
        number__gt=OuterRef("number"), number__lte=OuterRef("number") + _COMPARED,
    )  # fmt: skip
    longest = later.order_by(F("duration_ms").desc(nulls_last=True)).values("duration_ms")[:1]
    return rows.annotate(longest_later_ms=Subquery(longest))
