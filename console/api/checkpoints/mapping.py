"""The effects of a restore before it is requested: the mapping that the restore page shows and the master applies."""

from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import ScopedView, StrictView
from console.api.serializers.base import Problem
from console.checkpoints.models import Checkpoint
from console.jobs.models import Job
from console.operations.params import RestoreParams
from console.operations.restores.effects import report, run_to_end
from console.operations.restores.new_runs import new_run_target
from console.operations.restores.origin import Origin
from console.runs.selectors import latest_run
from runtime.core.restore.mapping import OperatorMatch


class OperatorMappingSerializer(serializers.Serializer[Any]):
    """An operator by uid, in the checkpoint and in the version. `reason` explains its fate; `problem` is a code."""

    uid = serializers.CharField()
    fate = serializers.ChoiceField(choices=[fate.value for fate in OperatorMatch])
    reason = serializers.CharField()
    parallelism_before = serializers.IntegerField(allow_null=True)
    parallelism_after = serializers.IntegerField(allow_null=True)
    partly_finished = serializers.BooleanField()
    state_bytes = serializers.IntegerField()
    problem = serializers.CharField(source="problem.code", default=None, allow_null=True)


class MappingProblemSerializer(serializers.Serializer[Any]):
    """A problem of the restore. `field` is the operator or field at fault; `allow_unmapped` waives it if `waivable`."""

    code = serializers.CharField()
    field = serializers.CharField()
    detail = serializers.CharField()
    waivable = serializers.BooleanField()


class RepeatedSerializer(serializers.Serializer[Any]):
    """Checkpoints, by number, whose output would be written a second time."""

    first = serializers.IntegerField()
    last = serializers.IntegerField()


class MappingSerializer(serializers.Serializer[Any]):
    """`restorable`: the restore has no problem and needs no acceptance. `refusal`: why it is not possible at all.

    A restore with the parameter `plan_hash` has these effects, or it is refused. While a run of the job is active, the
    plan is that of a rollback, which ends the run before the restore and repeats the output until its end.
    """

    version = serializers.IntegerField()
    parallelism = serializers.IntegerField()
    restorable = serializers.BooleanField()
    problems = MappingProblemSerializer(many=True)
    loses = serializers.ListField(child=serializers.CharField())
    repeats = RepeatedSerializer(allow_null=True)
    warnings = serializers.ListField(child=serializers.CharField())
    refusal = serializers.CharField(allow_null=True)
    operators = OperatorMappingSerializer(many=True)
    plan_hash = serializers.CharField()


class RestoreTargetQuery(serializers.Serializer[Any]):
    """`version` is the id of a version of the job (default: the newest that is ready); `parallelism` defaults to its
    own.
    """

    version = serializers.IntegerField(min_value=1, required=False)
    parallelism = serializers.IntegerField(min_value=1, required=False)


class SavepointMappingQuery(RestoreTargetQuery):
    """`path` is the folder of a savepoint."""

    path = serializers.CharField()


_RESPONSES: dict[int, Any] = {200: MappingSerializer, 409: Problem, 422: Problem}


class CheckpointMapping(StrictView):
    """The effects of restoring a checkpoint. A damaged or incomplete checkpoint is refused, as its restore would be."""

    queryset = Checkpoint.objects.all()
    serializer_class = MappingSerializer
    query = frozenset({"version", "parallelism"})

    @extend_schema(parameters=[RestoreTargetQuery], responses=_RESPONSES)
    def get(self, request: Request, pk: int) -> Response:
        checkpoint = get_object_or_404(Checkpoint.objects.select_related("job"), pk=pk)
        return _mapping_response(
            checkpoint.job, RestoreParams(checkpoint=pk, **_query_values(request, RestoreTargetQuery))
        )


class SavepointMapping(ScopedView):
    """The effects of restoring the savepoint in a folder."""

    queryset = Checkpoint.objects.all()
    serializer_class = MappingSerializer
    query = frozenset({"path", "version", "parallelism"})

    @extend_schema(parameters=[SavepointMappingQuery], responses=_RESPONSES)
    def get(self, request: Request, job: int) -> Response:
        return _mapping_response(self.parent(), RestoreParams(**_query_values(request, SavepointMappingQuery)))


def _query_values(request: Request, serializer_class: type[RestoreTargetQuery]) -> dict[str, Any]:
    serializer = serializer_class(data=request.query_params)
    serializer.is_valid(raise_exception=True)
    return dict(serializer.validated_data)


def _mapping_response(job: Job, params: RestoreParams) -> Response:
    version, parallelism = new_run_target(job, params)
    ends = run_to_end(latest_run(job))
    effects = report(job, Origin.from_params(job, params), version, parallelism, ends=ends)
    repeats = effects.repeated is not None or ends is not None
    body = {
        "version": version.pk,
        "parallelism": parallelism,
        "restorable": effects.refusal is None and effects.lost is None and not repeats,
        "problems": effects.mapping.all_problems,
        "loses": effects.mapping.loses,
        "repeats": effects.repeated,
        "warnings": effects.warnings,
        "refusal": effects.refusal and effects.refusal.detail,
        "operators": effects.mapping.operators,
        "plan_hash": effects.plan_hash,
    }
    return Response(MappingSerializer(body).data)
