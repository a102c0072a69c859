"""The same act on several jobs, with a result for each."""

from http import HTTPStatus
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.middleware import request_id_of
from console.accounts.refusals import InvalidField
from console.api.base import StrictView, location_response
from console.api.idempotency import KEY_HEADER
from console.api.serializers.base import Problem, StrictSerializer
from console.api.serializers.definitions import TagField
from console.checkpoints.filters import MAX_BIGINT
from console.jobs.changes import MAX_REASON_LENGTH
from console.jobs.editing import MAX_TAG_LENGTH, MAX_TAGS
from console.operations.bulk import BULK_ACTS, BULK_STATES, MAX_JOBS, BulkAct, bulk_lines, carry_out, result_lines
from console.operations.models import BulkOperation
from console.operations.services import OperationRequestContext


class BulkRequest(StrictSerializer):
    """`tag` and `untag` add and remove `tags`; the others request an operation. `reason` is stored with each."""

    conditions = {
        "if": {"properties": {"kind": {"enum": [BulkAct.TAG.value, BulkAct.UNTAG.value]}}},
        "then": {"required": ["tags"], "properties": {"tags": {"minItems": 1}}},
    }

    kind = serializers.ChoiceField(choices=BULK_ACTS)
    jobs = serializers.ListField(
        child=serializers.IntegerField(min_value=0, max_value=MAX_BIGINT), max_length=MAX_JOBS, help_text="Ids of jobs"
    )
    runs = serializers.ListField(
        child=serializers.IntegerField(min_value=0, max_value=MAX_BIGINT),
        required=False,
        default=list,
        help_text="Ids of the runs that the act is for. If given, a job is refused when another run is its latest.",
    )
    tags = serializers.ListField(
        child=TagField(max_length=MAX_TAG_LENGTH),
        required=False,
        default=list,
        max_length=MAX_TAGS,
    )
    reason = serializers.CharField(required=False, allow_blank=True, default="", max_length=MAX_REASON_LENGTH)


class BulkResult(serializers.Serializer[Any]):
    """The result for a job.

    `state`: `accepted` (`operation_state` is that of the operation now), `changed` or `unchanged` (tags), or `refused`;
    `detail` is the reason.
    """

    job = serializers.IntegerField(source="job.pk")
    name = serializers.CharField(source="job.name")
    state = serializers.ChoiceField(choices=BULK_STATES)
    operation = serializers.UUIDField(source="operation.pk", allow_null=True, default=None)
    operation_state = serializers.CharField(source="operation.state", allow_null=True, default=None)
    detail = serializers.CharField(source="refusal")


class BulkResults(serializers.ModelSerializer[BulkOperation]):
    kind = serializers.ChoiceField(choices=BULK_ACTS)
    tags = serializers.ListField(child=serializers.CharField())
    requested_by = serializers.CharField(source="requested_by.username", read_only=True)
    results = serializers.SerializerMethodField()

    @extend_schema_field(BulkResult(many=True))
    def get_results(self, row: BulkOperation) -> Any:
        return BulkResult(result_lines(row), many=True).data

    class Meta:
        model = BulkOperation
        fields = ("id", "kind", "tags", "reason", "requested_by", "created_at", "results")


class BulkActs(StrictView):
    """The same act on several jobs. A refusal stops no other job."""

    serializer_class = BulkRequest

    @extend_schema(
        request=BulkRequest,
        responses={200: BulkResults, 403: Problem, 422: Problem},
    )
    def post(self, request: Request) -> Response:
        """Requests a savepoint, stop, drain or cancel of each job, or adds or removes tags.

        Location is the address of the results.
        """
        body = self.body(BulkRequest)
        act, tags = BulkAct(body["kind"]), body["tags"]
        lines = bulk_lines(act, body["jobs"], tags, self.user, timezone.now())
        if unknown := set(body["jobs"]) - {line.job.pk for line in lines}:
            raise InvalidField("jobs", f"there is no job with the id {min(unknown)}")
        context = OperationRequestContext(
            user=self.user,
            reason=body["reason"],
            request_id=request_id_of(request._request),
            idempotency_key=request.headers.get(KEY_HEADER),
        )
        row = carry_out(act, lines, tags, context, body["runs"])
        return location_response("api:bulk-result", row.pk, BulkResults(row).data, HTTPStatus.OK)


class BulkDetail(StrictView, generics.RetrieveAPIView[BulkOperation]):
    """An act on several jobs, with the result and the present state of the operation for each."""

    queryset = BulkOperation.objects.select_related("requested_by")
    serializer_class = BulkResults
