"""The same act on several jobs, with a result for each."""

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.middleware import request_id_of
from console.accounts.refusals import InvalidField
from console.api import serializers
from console.api.base import StrictView
from console.operations.bulk import BulkAct, bulk_lines, carry_out
from console.operations.services import OperationRequestContext


class BulkActs(StrictView):
    """The same act on several jobs. A refusal stops no other job."""

    serializer_class = serializers.BulkRequest

    @extend_schema(
        request=serializers.BulkRequest,
        parameters=[OpenApiParameter("Idempotency-Key", str, OpenApiParameter.HEADER, required=False)],
        responses={200: serializers.BulkResults, 422: serializers.Problem},
    )
    def post(self, request: Request) -> Response:
        """Requests a savepoint, stop, drain or cancel of each job, or adds or removes tags."""
        given = self.body(serializers.BulkRequest)
        act, tags = BulkAct(given["kind"]), given["tags"]
        lines = bulk_lines(act, given["jobs"], tags, self.user, timezone.now())
        if unknown := set(given["jobs"]) - {line.job.pk for line in lines}:
            raise InvalidField("jobs", f"there is no job with the id {min(unknown)}")
        asked = OperationRequestContext(
            user=self.user,
            reason=given["reason"],
            request_id=request_id_of(request._request),
            idempotency_key=request.headers.get("Idempotency-Key"),
        )
        lines = carry_out(act, lines, tags, asked)
        return Response({"results": serializers.BulkResult(lines, many=True).data})
