"""Single sign-on by OpenID Connect (authorization code flow with PKCE), and the user that the claims of a token name.

Authlib checks state, nonce, signature, issuer, audience and times. A user is known by issuer and subject, never by a
name or an address, which a provider may give to another person.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from threading import BoundedSemaphore
from typing import Any, Final

import structlog
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

from console.accounts.models import User
from console.accounts.refusals import Forbidden, Refused
from console.accounts.storable import text_problem

_TIMEOUT_S: Final = 5
_MAX_CALLS: Final = 4  #: threads of the web server that wait for the provider at a time
_MAX_NAME: Final = 150  #: letters of a user name
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,40}")
#: Of Authlib and requests. A document of the provider may lack a key or be malformed.
_PROVIDER_ERRORS: Final = (AuthlibBaseError, JoseError, OSError, RuntimeError, KeyError, TypeError, ValueError)

_calls = BoundedSemaphore(_MAX_CALLS)
log = structlog.get_logger(__name__)


class SignOnFailed(Refused):
    """The provider did not answer, or refused the sign-on."""

    def __init__(self, detail: str) -> None:
        super().__init__("sign-on-failed", detail)


def is_offered() -> bool:
    return bool(settings.WEIR_OIDC_ISSUER)


def redirect_to_provider(request: HttpRequest, callback: str) -> HttpResponse:
    """Sends the browser to the provider, which sends it back to the address `callback`. Raises SignOnFailed."""
    with _provider_call():
        return _provider().authorize_redirect(request, callback)  # type: ignore[no-any-return]


def claims_of(request: HttpRequest) -> Mapping[str, Any]:
    """The claims of the user whom the provider has sent back. Blocks for its answers. Raises SignOnFailed."""
    provider, groups = _provider(), settings.WEIR_OIDC_GROUPS_CLAIM
    required = {"iss": settings.WEIR_OIDC_ISSUER, "aud": settings.WEIR_OIDC_CLIENT_ID}
    options = {name: {"essential": True, "value": value} for name, value in required.items()}
    with _provider_call():
        token = provider.authorize_access_token(request, claims_options=options)
        claims = dict(token["userinfo"])
        if groups not in claims and provider.server_metadata.get("userinfo_endpoint"):
            userinfo = provider.userinfo(token=token)
            if userinfo["sub"] != claims["sub"]:  # OpenID Connect Core, 5.3.2
                raise SignOnFailed("The provider answered for another subject.")
            claims = {**userinfo, **claims}
    if groups not in claims:
        advice = "WEIR_OIDC_GROUPS_CLAIM and WEIR_OIDC_SCOPE decide which claims the console reads."
        raise SignOnFailed(f"The provider named no groups: the claim {groups} is missing. {advice}")
    return claims


def admit(claims: Mapping[str, Any]) -> User:
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
        refused = ", ".join(sorted(names)) or "none"
        raise Forbidden(f"No group of the console has the name of one of your groups ({refused}).")
    user.groups.set(groups)
    if user.has_usable_password() and not user.is_superuser:  # the account was bound: its password and tokens end
        user.set_unusable_password()
        user.save(update_fields=["password"])
    return user


def _group_names(claims: Mapping[str, Any]) -> list[str]:
    value = claims[settings.WEIR_OIDC_GROUPS_CLAIM]
    values = value if isinstance(value, list) else [value]
    return [name for name in values if isinstance(name, str) and name and text_problem(name) is None]


def _create(identity: str, claims: Mapping[str, Any]) -> User:
    name = _user_name(identity, claims)
    fields = {
        "username": name, "password": make_password(None), "email": _text(claims, "email", 254),
        "first_name": _text(claims, "given_name", _MAX_NAME), "last_name": _text(claims, "family_name", _MAX_NAME),
    }  # fmt: skip
    try:
        return User.objects.get_or_create(identity=identity, defaults=fields)[0]
    except IntegrityError:
        advice = f"If that account is yours, an administrator may give it the identity '{identity}'."
        raise Forbidden(f"Another account has the user name {name}. {advice}") from None


def _user_name(identity: str, claims: Mapping[str, Any]) -> str:
    """The first of name, address and subject that can be a user name, else a digest of the identity."""
    for claim in ("preferred_username", "email", "sub"):
        name = User.normalize_username(_text(claims, claim, _MAX_NAME + 1))
        try:
            UnicodeUsernameValidator()(name)
        except ValidationError:
            continue
        if len(name) <= _MAX_NAME:
            return name
    return f"user-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def _text(claims: Mapping[str, Any], claim: str, limit: int) -> str:
    value = claims.get(claim)
    return value[:limit] if isinstance(value, str) and text_problem(value) is None else ""


def _remove_rights(user: User) -> None:
    """Removes groups, permissions, tokens and sessions: another unusable password ends both of the last."""
    with transaction.atomic():
        user.groups.clear()
        user.user_permissions.clear()
        user.set_unusable_password()
        user.is_staff = False
        user.save(update_fields=["password", "is_staff"])


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


@contextmanager
def _provider_call() -> Iterator[None]:
    """Calls of the provider, whose slowness must not occupy every thread. Raises SignOnFailed."""
    if not _calls.acquire(blocking=False):
        raise SignOnFailed("The provider answers others slowly now. Try again.")
    try:
        yield
    except _PROVIDER_ERRORS as error:
        code = str(getattr(error, "error", None) or type(error).__name__)
        log.warning("a sign-on failed", error=type(error).__name__, code=code)
        reason = code if _ERROR_CODE.fullmatch(code) else type(error).__name__
        if isinstance(error, OSError):
            raise SignOnFailed(f"The provider {settings.WEIR_OIDC_ISSUER} gave no answer: {reason}.") from error
        raise SignOnFailed(f"The provider refused the sign-on, or its answer is not valid: {reason}.") from error
    finally:
        _calls.release()
