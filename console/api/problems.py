"""Refusals as RFC 9457 `application/problem+json`, with a stable code and a pointer to the field at fault."""

import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404
from drf_spectacular.utils import extend_schema
from psycopg.errors import DeadlockDetected
from rest_framework import exceptions
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.views import APIView, set_rollback

from console.accounts.middleware import request_id_of
from console.accounts.refusals import Refused
from console.api.serializers.base import PROBLEM_TYPE

_DATABASE_RETRY_AFTER_S = 2
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,19}")  #: stricter than RFC 9110, since other text may be a bare token


def handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler. None for an unexpected error, which becomes a 500 with its traceback in the log."""
    set_rollback()
    request_id = request_id_of(context["request"]._request)
    if isinstance(error, Refused):
        return problem(error.status, error.code, error.detail, request_id, _field_errors(error), error.facts)
    if isinstance(error, OperationalError | InterfaceError):
        code, detail = "database-away", "Postgres is unreachable. Nothing was changed; try again."
        if isinstance(error.__cause__, DeadlockDetected):
            code, detail = "deadlock", "Another request waited for this one. Nothing was changed; try again."
        away = problem(HTTPStatus.SERVICE_UNAVAILABLE, code, detail, request_id)
        away["Retry-After"] = str(_DATABASE_RETRY_AFTER_S)
        return away
    if isinstance(error, RequestDataTooBig):
        detail = f"The request body exceeds {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes."
        return problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", detail, request_id)
    if isinstance(error, Http404):
        error = exceptions.NotFound(*error.args)
    elif isinstance(error, PermissionDenied):
        error = exceptions.PermissionDenied(*error.args)
    elif isinstance(error, exceptions.NotAuthenticated):
        error.detail = exceptions.ErrorDetail(_how_to_sign_in(context["request"]), error.default_code)
    return _from_drf(error, request_id) if isinstance(error, exceptions.APIException) else None


def _how_to_sign_in(request: Request) -> str:
    """The error detail. It names the sent scheme only if credentials follow: text without a space may be the token."""
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    is_other = bool(credentials) and _SCHEME.fullmatch(scheme) is not None
    sent = f"The scheme {scheme} is not accepted. " if is_other else ""
    return f"{sent}Send 'Authorization: Bearer <token>'; POST {reverse('api:login')} issues a token."


def problem(
    status: int,
    code: str,
    detail: str,
    request_id: str,
    errors: list[dict[str, str]] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Response:
    """A refusal as a response. `facts` become top-level members of the document."""
    http = HTTPStatus(status)
    body = {
        "type": "about:blank",
        "title": http.phrase,
        "status": http.value,
        "detail": detail,
        "code": code,
        "errors": errors or [],
        "request_id": request_id,
        **(facts or {}),
    }
    return Response(body, status=http.value, content_type=PROBLEM_TYPE)


def _field_errors(error: Refused) -> list[dict[str, str]]:
    if error.field is None:
        return []
    return [{"pointer": "/" + error.field.replace(".", "/"), "code": error.code, "detail": error.detail}]


def _from_drf(error: exceptions.APIException, request_id: str) -> Response:
    errors = list(_flatten_errors(error.detail, "")) if isinstance(error, exceptions.ValidationError) else []
    detail = "; ".join(
        f"{e['pointer'][1:].replace('/', '.')}: {e['detail']}" if e["pointer"] else e["detail"] for e in errors
    )
    code = "invalid-request" if errors else str(error.default_code).replace("_", "-")
    response = problem(error.status_code, code, detail or str(error.detail), request_id, errors)
    if challenge := getattr(error, "auth_header", None):
        response["WWW-Authenticate"] = challenge
    if wait := getattr(error, "wait", None):
        response["Retry-After"] = str(int(wait) + 1)
    return response


def _flatten_errors(detail: Any, pointer: str) -> Iterator[dict[str, str]]:
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            yield from _flatten_errors(inner, pointer if name == "non_field_errors" else f"{pointer}/{name}")
    elif isinstance(detail, list):
        for inner in detail:
            yield from _flatten_errors(inner, pointer)
    else:
        code = str(getattr(detail, "code", "invalid")).replace("_", "-")
        yield {"pointer": pointer, "code": code, "detail": str(detail)}


class NoSuchRoute(APIView):
    """404 as a problem document instead of an HTML page."""

    permission_classes = (AllowAny,)

    @extend_schema(exclude=True)
    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        raise exceptions.NotFound(f"There is no route {request.path}.")
