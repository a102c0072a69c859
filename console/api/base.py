"""Base classes of the API views. Unknown query parameters are errors instead of being ignored."""

from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from django.db.models import Model, QuerySet
from django.shortcuts import get_object_or_404
from django_filters.rest_framework import BooleanFilter, CharFilter
from drf_spectacular.utils import OpenApiParameter
from rest_framework import generics, serializers
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.throttling import BaseThrottle

from console.accounts.models import User
from console.accounts.refusals import Refused
from console.accounts.throttling import UserThrottle
from console.api.idempotency import KEY_HEADER, answer_once
from console.jobs.models import Job

_IF_MATCH = partial(
    OpenApiParameter, "If-Match", str, OpenApiParameter.HEADER,
    description="ETag of the job, or *; 412 if the job has changed. Tags are compared strongly.",
)  # fmt: skip
IF_MATCH, REQUIRED_IF_MATCH = _IF_MATCH(required=False), _IF_MATCH(required=True)
RETRY_AFTER_S = 1
_PAGING = {"limit", "cursor"}


class StrictView(generics.GenericAPIView[Any]):
    """Refuses unknown query parameters. `query` names the parameters that the view reads itself.

    A POST with an `Idempotency-Key` is answered once (`console.api.idempotency`).
    `If-Match` is refused on resources without an entity tag: a client that sends it forbids an unconditional update.
    """

    post: Callable[..., Response]
    query: frozenset[str] = frozenset()
    conditional = False  #: POST supports `If-Match`
    filterset_class: Any = None
    _throttles: Sequence[BaseThrottle] = ()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        filtered = set(self.filterset_class.base_filters) | _PAGING if self.filterset_class else set()
        if unknown := sorted(set(request.query_params) - filtered - self.query):
            parameters = ", ".join(sorted(filtered | self.query)) or "none"
            raise serializers.ValidationError(
                dict.fromkeys(unknown, f"This parameter is unknown; known: {parameters}.")
            )

        rows = self.filterset_class.base_filters if self.filterset_class else {}
        problems = {
            name: _problem_of(rows[name], str(value)) for name, value in request.query_params.items() if name in rows
        }
        if wrong := {name: problem for name, problem in problems.items() if problem}:
            raise serializers.ValidationError(wrong)

        if "If-Match" in request.headers and request.method not in SAFE_METHODS and not self.conditional:
            detail = "If-Match: this resource has no entity tag to compare with. Nothing was changed."
            raise Refused("stale", detail, "If-Match", HTTPStatus.PRECONDITION_FAILED)

        if request.method == "POST" and KEY_HEADER in request.headers and request.user.is_authenticated:
            self.post = partial(answer_once, self.post)

    def get_throttles(self) -> list[BaseThrottle]:
        self._throttles = super().get_throttles()
        return self._throttles

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        for throttle in self._throttles:
            if isinstance(throttle, UserThrottle):
                for name, value in throttle.headers.items():
                    response[name] = value
        return response

    @property
    def user(self) -> User:
        """The authenticated user; only for views that need a login."""
        return cast(User, self.request.user)

    def body(self, serializer_class: type[serializers.Serializer[Any]]) -> dict[str, Any]:
        """The validated body of the request."""
        serializer = serializer_class(data=self.request.data)
        serializer.is_valid(raise_exception=True)
        return cast(dict[str, Any], serializer.validated_data)


def _problem_of(rows: Any, value: str) -> str:
    """Why the filter `rows` would ignore `value`; "" if it would not."""
    if isinstance(rows, BooleanFilter) and value not in ("true", "false"):
        return "This parameter must be true or false."
    return "" if value or type(rows) is CharFilter else "This parameter must not be empty."


class ScopedView(StrictView):
    """Rows that belong to the row in the path, an instance of `scope`. Route and rows name it like its model."""

    scope: type[Model] = Job

    def parent(self) -> Any:
        return get_object_or_404(self.scope, pk=self.kwargs[self.scope._meta.model_name])

    def get_queryset(self) -> QuerySet[Any, Any]:
        if getattr(self, "swagger_fake_view", False):
            return super().get_queryset().none()
        return super().get_queryset().filter(**{str(self.scope._meta.model_name): self.parent()})


def location_response(view: str, pk: object, body: Any, status: HTTPStatus = HTTPStatus.ACCEPTED) -> Response:
    """The response with a new row. `Location` is the address of the row, where clients poll it if `status` is 202."""
    headers = {"Location": reverse(view, args=(pk,))}
    if status is HTTPStatus.ACCEPTED:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return Response(body, status=status, headers=headers)
