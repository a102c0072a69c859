"""Filters of lists. `console.api.base` refuses all other query parameters."""

from django import forms
from django_filters import rest_framework as filters

from console.checkpoints.models import Checkpoint, StateQuery
from console.jobs.models import Job, JobVersion, Run
from console.operations.models import Operation


class WholeNumber(filters.Filter):
    """An integer filter. Django's own would truncate 1.5 to 1."""

    field_class = forms.IntegerField


class JobFilter(filters.FilterSet):
    """Jobs by pipeline or by a part of the name."""

    q = filters.CharFilter(field_name="name", lookup_expr="icontains", label="part of the name")
    name = filters.CharFilter(field_name="name")
    pipeline = filters.CharFilter(field_name="pipeline")

    class Meta:
        model = Job
        fields: tuple[str, ...] = ()


class VersionFilter(filters.FilterSet):
    """Versions by state or number."""

    state = filters.ChoiceFilter(choices=JobVersion._meta.get_field("state").choices)
    number = WholeNumber()

    class Meta:
        model = JobVersion
        fields: tuple[str, ...] = ()


class RunFilter(filters.FilterSet):
    """Runs by state."""

    state = filters.ChoiceFilter(choices=Run._meta.get_field("state").choices)

    class Meta:
        model = Run
        fields: tuple[str, ...] = ()


class CheckpointFilter(filters.FilterSet):
    """Checkpoints by kind, status, review, number or time."""

    kind = filters.ChoiceFilter(choices=Checkpoint._meta.get_field("kind").choices)
    status = filters.ChoiceFilter(choices=Checkpoint._meta.get_field("status").choices)
    review_state = filters.ChoiceFilter(choices=Checkpoint._meta.get_field("review_state").choices)
    triggered__gte = filters.IsoDateTimeFilter(field_name="triggered_at", lookup_expr="gte")
    triggered__lt = filters.IsoDateTimeFilter(field_name="triggered_at", lookup_expr="lt")
    number = WholeNumber()

    class Meta:
        model = Checkpoint
        fields = ("run",)


class StateQueryFilter(filters.FilterSet):
    """Queries of a checkpoint's state, by query state."""

    state = filters.ChoiceFilter(choices=StateQuery._meta.get_field("state").choices)

    class Meta:
        model = StateQuery
        fields: tuple[str, ...] = ()


class OperationFilter(filters.FilterSet):
    """Operations by kind, state or run."""

    kind = filters.ChoiceFilter(choices=Operation._meta.get_field("kind").choices)
    state = filters.ChoiceFilter(choices=Operation._meta.get_field("state").choices)

    class Meta:
        model = Operation
        fields = ("run",)
