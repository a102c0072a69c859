"""API authentication by `Authorization: Bearer <token>`. A browser session works too, with the usual CSRF check."""

from typing import Any

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import TokenAuthentication
from rest_framework.exceptions import AuthenticationFailed

from console.accounts import tokens
from console.accounts.models import ApiToken, User


class BearerAuthentication(TokenAuthentication):
    """A token from `POST auth/token/`."""

    keyword = "Bearer"
    model = ApiToken

    def authenticate_credentials(self, key: str) -> tuple[User, ApiToken]:
        found = tokens.find(key)
        if found is None or not found.user.is_active:
            raise AuthenticationFailed("This token is not valid: it was revoked, or never issued.")
        if found.expires_at is not None and found.expires_at <= timezone.now():
            raise AuthenticationFailed(f"This token expired at {found.expires_at:%Y-%m-%d %H:%M} UTC. Issue a new one.")
        return found.user, found


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The scheme's entry in the OpenAPI document."""

    target_class = BearerAuthentication
    name = "bearer"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}
