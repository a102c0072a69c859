"""Runs, checkpoints and operations."""

import threading
import time
from typing import Any
from uuid import UUID

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.middleware import request_id_of
from console.api.base import IF_MATCH, RETRY_AFTER_S, ScopedView, StrictView, location_response
from console.api.filters import AllOperationFilter, OperationFilter, RunFilter
from console.api.idempotency import KEY_HEADER, REPLAY_HEADER
from console.api.json_schemas import integer_from
from console.api.pagination import NewestNumberFirst, NewestOperationFirst
from console.api.parsing import whole_number
from console.api.serializers.base import Problem
from console.api.serializers.checkpoints import CheckpointDetailSerializer, CheckpointSerializer
from console.api.serializers.operations import OperationRequest, OperationSerializer
from console.api.serializers.runs import RunDetailSerializer, RunSerializer
from console.checkpoints.filters import CheckpointFilter
from console.checkpoints.models import Checkpoint
from console.jobs.models import Run
from console.operations import services
from console.operations.models import Operation
from console.operations.services import withdraw_operation

MAX_WAIT_S = 60
_POLL_S = 0.25
#: A waiting request holds a place and a connection, so that the other places stay free for pages.
_WAITING_PLACES = threading.BoundedSemaphore(max(1, settings.WEIR_WEB_THREADS // 4))
_ABOUT_WAIT = (
    f"Seconds to wait for the end, at most {MAX_WAIT_S}. A quarter of the threads of the web server may wait; another "
    "request is answered at once. `Retry-After` is set as long as the end is missing."
)
WAIT = OpenApiParameter("wait", integer_from(0), description=_ABOUT_WAIT)


class Runs(ScopedView, generics.ListAPIView[Run]):
    """The runs of a job, newest first."""

    queryset = Run.objects.select_related("version").defer("live")
    serializer_class = RunSerializer
    filterset_class = RunFilter


class RunDetail(StrictView, generics.RetrieveAPIView[Run]):
    """A run with its state, live metrics and attempts, and the operations that are legal now."""

    queryset = Run.objects.select_related("version", "job__health").prefetch_related("attempts", "standing_stages")
    serializer_class = RunDetailSerializer


class Checkpoints(ScopedView, generics.ListAPIView[Checkpoint]):
    """The checkpoints of a job, newest first."""

    queryset = Checkpoint.objects.all()
    serializer_class = CheckpointSerializer
    filterset_class = CheckpointFilter
    pagination_class = NewestNumberFirst


class RunCheckpoints(Checkpoints):
    """The checkpoints of a run, newest first."""

    scope = Run


class CheckpointDetail(StrictView, generics.RetrieveAPIView[Checkpoint]):
    """A checkpoint, with the acknowledgements of its subtasks and its explanation in words."""

    queryset = Checkpoint.objects.defer(None).select_related("run__version").defer("run__live", "run__version__params")
    serializer_class = CheckpointDetailSerializer


class Operations(ScopedView, generics.ListAPIView[Operation]):
    """The operations of a job, newest first."""

    conditional = True
    queryset = Operation.objects.all()
    serializer_class = OperationSerializer
    filterset_class = OperationFilter
    pagination_class = NewestOperationFirst

    @extend_schema(
        request=OperationRequest,
        parameters=[IF_MATCH],
        responses={202: OperationSerializer, 403: Problem, 409: Problem, 412: Problem, 422: Problem},
    )
    def post(self, request: Request, job: int) -> Response:
        """Requests an operation. The response is always 202: poll Location, or read it with `?wait=30`."""
        values = self.body(OperationRequest)
        context = services.OperationRequestContext(
            user=self.user,
            reason=values["reason"],
            request_id=request_id_of(request._request),
            idempotency_key=request.headers.get(KEY_HEADER),
            if_match=request.headers.get("If-Match"),
        )
        accepted = services.request(context, self.parent(), values["kind"], values.get("params"))
        body = OperationSerializer(accepted.operation).data
        response = location_response("api:operation", accepted.operation.pk, body)
        if accepted.replayed:
            response[REPLAY_HEADER] = "true"
        return response


class AllOperations(StrictView, generics.ListAPIView[Operation]):
    """The operations of all jobs, newest first."""

    queryset = Operation.objects.all()
    serializer_class = OperationSerializer
    filterset_class = AllOperationFilter
    pagination_class = NewestOperationFirst


class OperationWithdrawal(StrictView, generics.GenericAPIView[Operation]):
    """The withdrawal of a request that no job master has begun, or of a rescale or rollback before its restore.

    A copy, a check of files and a restore drill can be withdrawn while they are under way too.
    """

    queryset = Operation.objects.all()
    serializer_class = OperationSerializer

    @extend_schema(request=None, responses={200: OperationSerializer, 409: Problem})
    def post(self, request: Request, pk: UUID) -> Response:
        """Ends the operation as failed; its error names the consequence. The stop or cancel of a rollback goes on.

        A copy, check or drill that is under way stops soon: wait for its end with `?wait=`.
        """
        row = self.get_object()
        withdraw_operation(self.user, row)
        row.refresh_from_db()
        return Response(self.get_serializer(row).data)


class AwaitedView(StrictView, generics.RetrieveAPIView[Any]):
    """A row that is active for a while. With `?wait=` the response comes once it is inactive, or after that time.

    A quarter of the threads of the web server may wait. A further request is answered at once, with `Retry-After`.
    """

    query = frozenset({"wait"})

    @extend_schema(parameters=[WAIT])
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        wait_s = whole_number("wait", request.query_params.get("wait", "0"), MAX_WAIT_S)
        row = self.get_object()
        if row.is_active and wait_s and _WAITING_PLACES.acquire(blocking=False):
            try:
                row = self._wait(row, wait_s)
            finally:
                _WAITING_PLACES.release()
        response = Response(self.get_serializer(row).data)
        if row.is_active:
            response["Retry-After"] = str(RETRY_AFTER_S)
        return response

    def _wait(self, row: Any, wait_s: int) -> Any:
        deadline = time.monotonic() + wait_s
        while row.is_active and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            row = self.get_object()
        return row


class OperationDetail(AwaitedView):
    """An operation."""

    queryset = Operation.objects.all()
    serializer_class = OperationSerializer
