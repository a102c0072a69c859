"""Filters of lists. `console.api.base` refuses all other query parameters."""

from django.db.models import QuerySet
from django_filters import rest_framework as filters

from console.checkpoints.filters import WholeNumber
from console.checkpoints.models import QUERY_STATES
from console.jobs.models import RUN_STATES, VERSION_STATES, Job, choices
from console.operations.models import OPERATION_STATES, Operation, OperationKind
from console.operations.selectors import operations_matching


class JobFilter(filters.FilterSet):
    """Jobs by pipeline or by a part of the name."""

    q = filters.CharFilter(field_name="name", lookup_expr="icontains", label="part of the name")
    name = filters.CharFilter()
    pipeline = filters.CharFilter()
    owner = filters.CharFilter()
    tag = filters.CharFilter(method="filter_tag", label="a tag of the job")
    archived = filters.BooleanFilter(field_name="archived_at", lookup_expr="isnull", exclude=True)

    def filter_tag(self, jobs: QuerySet[Job], name: str, value: str) -> QuerySet[Job]:
        return jobs.filter(tags__contains=[value])


class VersionFilter(filters.FilterSet):
    """Versions by state or number."""

    state = filters.ChoiceFilter(choices=VERSION_STATES)
    number = WholeNumber()


class RunFilter(filters.FilterSet):
    """Runs by state."""

    state = filters.ChoiceFilter(choices=RUN_STATES)


class StateQueryFilter(filters.FilterSet):
    """Queries of a checkpoint's state, by query state."""

    state = filters.ChoiceFilter(choices=QUERY_STATES)


class OperationFilter(filters.FilterSet):
    """Operations by kind, state or run."""

    kind = filters.ChoiceFilter(choices=choices(OperationKind))
    state = filters.ChoiceFilter(choices=OPERATION_STATES)
    run = WholeNumber()

    class Meta:
        model = Operation
        fields = ()


class AllOperationFilter(OperationFilter):
    """Operations of all jobs, also by job, user and text."""

    job = WholeNumber()
    user = filters.CharFilter(field_name="requested_by__username", label="name of the user who requested it")
    q = filters.CharFilter(method="filter_text", label="part of the job's name or of the reason, or a request id")

    def filter_text(self, operations: QuerySet[Operation], name: str, value: str) -> QuerySet[Operation]:
        return operations.filter(operations_matching(value))
