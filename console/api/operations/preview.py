"""The effects of a savepoint or of the end of a run in numbers, before it is requested, and the recovery horizon."""

from typing import Any, Final

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.refusals import InvalidField
from console.api.base import ScopedView
from console.api.serializers.base import Problem
from console.checkpoints.restart_times import read_restarts_ms
from console.checkpoints.selectors import run_progress
from console.health.recovery import read_horizon
from console.operations.kinds.job.delegated import DelegatedOperation
from console.operations.registry import operation_of, types_of
from console.runs.selectors import latest_run

PREVIEWED: Final = [each.kind.value for each in types_of(DelegatedOperation)]


class PreviewNumberSerializer(serializers.Serializer[Any]):
    """`key` names `amount`, with its unit unless it is a count. The texts are those of the confirmation page."""

    key = serializers.CharField()
    amount = serializers.FloatField()
    term = serializers.CharField()
    value = serializers.CharField()
    note = serializers.CharField(allow_blank=True)


class HorizonSerializer(serializers.Serializer[Any]):
    """The effect of a failure now: the run continues from `checkpoint`, or from its start if that is null."""

    point = serializers.DateTimeField(help_text="A restart reads the input from this time on again.")
    checkpoint = serializers.IntegerField(allow_null=True, help_text="Its number within the job.")
    records = serializers.IntegerField(allow_null=True, help_text="Records that are read again; null: not known.")
    restart_ms = serializers.FloatField(allow_null=True, help_text="Median of the newest restarts of the job.")
    restarts = serializers.IntegerField(help_text="Number of restarts in the median.")


class PreviewSerializer(serializers.Serializer[Any]):
    act = serializers.CharField()
    run = serializers.IntegerField(allow_null=True, help_text="The latest run; null: the job never ran.")
    numbers = PreviewNumberSerializer(many=True, help_text="Empty unless records flow.")
    horizon = HorizonSerializer(allow_null=True, help_text="Null unless records flow.")


class OperationPreview(ScopedView):
    """The numbers of a confirmation page. Whether the operation is possible is in `acts` of the run."""

    serializer_class = PreviewSerializer
    query = frozenset({"act"})

    @extend_schema(
        parameters=[OpenApiParameter("act", str, required=True, enum=PREVIEWED)],
        responses={200: PreviewSerializer, 404: Problem, 422: Problem},
    )
    def get(self, request: Request, job: int) -> Response:
        """A preview changes nothing. Restore and rescale have previews of their own, with the mapping of operators."""
        of, act = self.parent(), request.query_params.get("act", "")
        if act not in PREVIEWED:
            raise InvalidField("act", f"must be one of {', '.join(PREVIEWED)}")
        run, now = latest_run(of), timezone.now()
        reached, horizon = run_progress(run), run and read_horizon(run, now, read_restarts_ms(of.pk))
        begin = reached.continuable.triggered_at if reached.continuable else None
        replayed = horizon.records_from(begin) if horizon else None
        numbers = operation_of(DelegatedOperation, act).preview(run, reached, replayed)
        body = {"act": act, "run": run and run.pk, "numbers": numbers, "horizon": horizon}
        return Response(self.get_serializer(body).data)
