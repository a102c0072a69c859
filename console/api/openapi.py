"""The OpenAPI document: its page, the scheme of API tokens, and JSON schemas that it quotes."""

from collections.abc import Mapping
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.authentication import SessionAuthentication

from console.api.auth import BearerAuthentication


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


def inline_references(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` with its definitions inlined, since its internal references would be dangling in the document.

    Keywords beside a reference take precedence; titles are dropped.
    """
    copy: dict[str, Any] = _inline(schema, schema.get("$defs", {}))
    return copy


def _inline(part: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(part, list):
        return [_inline(item, definitions) for item in part]
    if not isinstance(part, Mapping):
        return part
    name = str(part.get("$ref", "")).rpartition("/")[2]
    keywords = {**definitions.get(name, {}), **part}
    dropped = ("$ref", "$defs", "title")
    return {key: _inline(value, definitions) for key, value in keywords.items() if key not in dropped}
