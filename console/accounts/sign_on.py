"""Single sign-on by OpenID Connect (authorization code flow with PKCE), and the user that the claims of a token name.

Authlib checks state, nonce, signature, issuer, audience and times. A user is known by issuer and subject, never by a
name or an address, which a provider may give to another person.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from authlib.common.errors import AuthlibBaseError
from authlib.integrations.django_client import OAuth
from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Group
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse
from joserfc.errors import JoseError

from console.accounts.models import ApiToken, User
from console.accounts.refusals import Forbidden, Refused

#: A session ends after this time, so that the provider is asked again.
SESSION_S: Final = 12 * 3600
_TIMEOUT_S: Final = 5
_MAX_NAME: Final = 150  #: letters of a user name


class SignOnFailed(Refused):
    """The provider did not answer, or refused the sign-on."""

    def __init__(self, detail: str) -> None:
        super().__init__("sign-on-failed", detail)


def is_offered() -> bool:
    return bool(settings.WEIR_OIDC_ISSUER)


def redirect_to_provider(request: HttpRequest, callback: str) -> HttpResponse:
    """Sends the browser to the provider, which sends it back to the address `callback`. Raises SignOnFailed."""
    try:
        return _provider().authorize_redirect(request, callback)  # type: ignore[no-any-return]
    except _ERRORS as error:
        raise _failure(error) from error


def claims_of(request: HttpRequest) -> Mapping[str, Any]:
    """The claims of the user whom the provider has sent back. Blocks for its answers. Raises SignOnFailed."""
    provider = _provider()
    try:
        token = provider.authorize_access_token(request)
        claims = dict(token["userinfo"])
        if settings.WEIR_OIDC_GROUPS_CLAIM not in claims and provider.server_metadata.get("userinfo_endpoint"):
            further = provider.userinfo(token=token)
            if further["sub"] == claims["sub"]:  # OpenID Connect Core, 5.3.2
                claims = {**further, **claims}
    except _ERRORS as error:
        raise _failure(error) from error
    if claims["iss"] != settings.WEIR_OIDC_ISSUER:
        raise SignOnFailed(f"The provider calls itself {claims['iss']}, which WEIR_OIDC_ISSUER must repeat exactly.")
    return claims


def user_of(claims: Mapping[str, Any]) -> User:
    """The user of these claims, made at the first sign-on. Their groups become those that the claims name.

    Raises:
        Forbidden: the claims name no group of the console, the account is not active, or another one has the name.
    """
    identity, names = f"{claims['iss']} {claims['sub']}", _group_names(claims)
    groups = Group.objects.filter(name__in=names)
    user = User.objects.filter(identity=identity).first()
    if user is None:
        user = _create(identity, claims) if groups else None
    elif not user.is_active:
        raise Forbidden(f"The account {user.username} is not active.")
    if user is None or not (groups or user.is_superuser):
        if user is not None:
            _remove_rights(user)
        named = ", ".join(sorted(names)) or "none"
        raise Forbidden(f"No group of the console has the name of one of your groups ({named}).")
    user.groups.set(groups)
    return user


def _group_names(claims: Mapping[str, Any]) -> list[str]:
    value = claims.get(settings.WEIR_OIDC_GROUPS_CLAIM)
    values = value if isinstance(value, list) else [value]
    return [name for name in values if isinstance(name, str) and name]


def _create(identity: str, claims: Mapping[str, Any]) -> User:
    name = _user_name(claims)
    fields = {
        "username": name, "password": make_password(None), "email": str(claims.get("email") or "")[:254],
        "first_name": str(claims.get("given_name") or "")[:_MAX_NAME],
        "last_name": str(claims.get("family_name") or "")[:_MAX_NAME],
    }  # fmt: skip
    try:
        return User.objects.get_or_create(identity=identity, defaults=fields)[0]
    except IntegrityError:
        advice = f"An administrator may give that account the identity '{identity}'."
        raise Forbidden(f"Another account has the user name {name}. {advice}") from None


def _user_name(claims: Mapping[str, Any]) -> str:
    """The first of name, address and subject that can be a user name."""
    for claim in ("preferred_username", "email"):
        name = claims.get(claim)
        if isinstance(name, str) and 0 < len(name) <= _MAX_NAME:
            try:
                UnicodeUsernameValidator()(name)
            except ValidationError:
                continue
            return name
    return str(claims["sub"])[:_MAX_NAME]


def _remove_rights(user: User) -> None:
    with transaction.atomic():
        user.groups.clear()
        ApiToken.objects.filter(user=user).delete()


@cache
def _provider() -> Any:
    """The client of the provider. It reads the provider's addresses at its first use; its methods may run at once."""
    return OAuth().register(
        "provider",
        client_id=settings.WEIR_OIDC_CLIENT_ID,
        client_secret=settings.WEIR_OIDC_CLIENT_SECRET,
        server_metadata_url=f"{settings.WEIR_OIDC_ISSUER.rstrip('/')}/.well-known/openid-configuration",
        client_kwargs={
            "scope": settings.WEIR_OIDC_SCOPE, "code_challenge_method": "S256", "default_timeout": _TIMEOUT_S,
        },
    )  # fmt: skip


#: Of Authlib and requests. A document of the provider may lack a key or be malformed.
_ERRORS: Final = (AuthlibBaseError, JoseError, OSError, RuntimeError, KeyError, TypeError, ValueError)


def _failure(error: Exception) -> SignOnFailed:
    if isinstance(error, OSError):  # of requests
        return SignOnFailed(f"The provider {settings.WEIR_OIDC_ISSUER} does not answer: {type(error).__name__}.")
    return SignOnFailed(
        f"The provider refused the sign-on, or its answer is not valid: {error or type(error).__name__}."
    )
