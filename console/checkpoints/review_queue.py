"""The checkpoints that need a look, with filters that the review desk and the API share."""

from django.db.models import QuerySet
from django_filters import rest_framework as filters

from console.checkpoints.models import NEEDS_REVIEW, Checkpoint, Concern
from console.jobs.models import Job, choices

MAX_JOBS = 50  #: matches of a part of a name


class ReviewFilter(filters.FilterSet):
    """The review queue by concern, job or assignee."""

    concern = filters.ChoiceFilter(choices=choices(Concern), method="of_concern")
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
