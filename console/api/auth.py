"""API authentication by `Authorization: Bearer <token>`. A browser session works too, with the usual CSRF check."""

from django.utils import timezone
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
        found.user.token_scopes = frozenset(found.scopes)
        return found.user, found
