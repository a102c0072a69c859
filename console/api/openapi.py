"""The OpenAPI document: its page, the scheme of API tokens, and what operations have in common."""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework import serializers
from rest_framework.authentication import SessionAuthentication
from rest_framework.permissions import SAFE_METHODS

from console.api.auth import BearerAuthentication
from console.api.idempotency import KEY_HEADER
from console.api.serializers.base import PROBLEM_TYPE, StrictSerializer
from console.operations.services import MAX_KEY_LENGTH

_NOT_BLANK: Final = r"[^\s\x1c-\x1f\x85]"  #: a character that Python's `strip` keeps

_IDEMPOTENCY_KEY: Final = {
    "name": KEY_HEADER,
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_LENGTH, "pattern": "^[!-~]([ -~]*[!-~])?$"},
    "description": "Within a day, a repetition with the same key and body has the answer of the first request. It has "
    "no further effect. With another body it is refused.",
}


class Docs(SpectacularSwaggerSplitView):
    """Swagger UI without inline script or style, which the content security policy forbids."""

    template_name = "api/docs.html"


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = BearerAuthentication
    name = "bearer"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The cookie of a session. Its real name ends with a digest of the installation, which no document can have."""

    target_class = SessionAuthentication
    name = "session"
    priority = 1  # before the scheme of the library

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        about = "The session of the pages. The name of the cookie ends with a digest of the installation."
        return {"type": "apiKey", "in": "cookie", "name": "weir_session", "description": about}


class StrictBody(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """The schema of a strict body: no unknown members, no blank text, and conditions on several members."""

    target_class = StrictSerializer
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        schema = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        for name, field in self.target.fields.items():
            if isinstance(field, serializers.CharField) and field.trim_whitespace and not field.allow_blank:
                schema["properties"][name].setdefault("pattern", _NOT_BLANK)
        return {**schema, "additionalProperties": False, **self.target.conditions}


def document_common_parts(result: dict[str, Any], **generator: Any) -> dict[str, Any]:
    """A hook of drf-spectacular: documents the refusals that operations have in common, and idempotency keys.

    A view declares only the statuses of its own. Bodies of refusals are problem documents.
    """
    responses = result["components"].setdefault("responses", {})
    result["components"]["parameters"] = {"IdempotencyKey": _IDEMPOTENCY_KEY}
    for operations in result["paths"].values():
        for method, operation in operations.items():
            if method == "post":
                operation.setdefault("parameters", []).append({"$ref": "#/components/parameters/IdempotencyKey"})
            declared = {int(status) for status in operation["responses"] if int(status) >= HTTPStatus.BAD_REQUEST}
            for status in sorted(declared | set(_common_refusals(method, operation))):
                name = "".join(word.capitalize() for word in HTTPStatus(status).phrase.split())
                responses[name] = _refusal(HTTPStatus(status))
                operation["responses"][str(status)] = {"$ref": f"#/components/responses/{name}"}
    return cast(dict[str, Any], _without_empty_choices(result))


def _common_refusals(method: str, operation: Mapping[str, Any]) -> Iterator[HTTPStatus]:
    """The statuses of refusals before the view reads the request, and of views with an input of that kind."""
    yield from (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_ACCEPTABLE, HTTPStatus.SERVICE_UNAVAILABLE)
    inputs = {(each.get("in"), each.get("name")) for each in operation.get("parameters", ())}
    if operation.get("security") != []:
        yield from (HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS)
    if ("query", "cursor") in inputs or any(place == "path" for place, _ in inputs):
        yield HTTPStatus.NOT_FOUND
    if "requestBody" in operation or any(place != "path" for place, _ in inputs):
        yield HTTPStatus.UNPROCESSABLE_ENTITY
    if method.upper() not in SAFE_METHODS:
        yield from (HTTPStatus.FORBIDDEN, HTTPStatus.PRECONDITION_FAILED)
        yield from (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)


def _refusal(status: HTTPStatus) -> dict[str, Any]:
    problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return {"description": status.description or status.phrase, "content": {PROBLEM_TYPE: problem}}


def _without_empty_choices(part: Any) -> Any:
    """`part` with `{}` in place of a choice between `{}` and null, of which null would be both."""
    if isinstance(part, list):
        return [_without_empty_choices(item) for item in part]
    if not isinstance(part, Mapping):
        return part
    dropped = ("oneOf",) if {} in part.get("oneOf", ()) else ()
    return {name: _without_empty_choices(value) for name, value in part.items() if name not in dropped}
