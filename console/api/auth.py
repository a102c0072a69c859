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
        token = tokens.find(key)
        if token is None or not token.user.is_active:
            raise AuthenticationFailed("This token is not valid: it was revoked, or never issued.")
        if token.expires_at is not None and token.expires_at <= timezone.now():
            raise AuthenticationFailed(f"This token expired at {token.expires_at:%Y-%m-%d %H:%M} UTC. Issue a new one.")
        if token.user.must_sign_on:
            age = f"older than {token.user.SIGN_ON_DAYS} days"
            raise AuthenticationFailed(f"The last single sign-on of this user is {age}. Sign in on the console.")
        token.user.token_scopes = frozenset(token.scopes)
        return token.user, token
