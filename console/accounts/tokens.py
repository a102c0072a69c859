"""Tokens of the API. Only a hash is stored; the token itself appears once, in the response that issues it."""

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce, Now
from django.utils import timezone

from console.accounts.models import ApiToken, Scope, User
from console.accounts.refusals import Forbidden

PREFIX: Final = "weir_"  #: lets scanners for leaked secrets recognise a token
_ENTROPY_BYTES: Final = 32
_HINT_CHARACTERS: Final = len(PREFIX) + 4
_USED_AT_PRECISION: Final = timedelta(minutes=1)  #: saves a write per request


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token. `text` cannot be read again. `replaced`: the beginnings of tokens that were revoked for it."""

    text: str
    replaced: tuple[str, ...]


def issue(
    user: User,
    expires_at: datetime | None = None,
    *,
    scopes: Iterable[str] = (),
    max_tokens: int = 100,
    request_key: str | None = None,
) -> IssuedToken:
    """Issues a token of `user`. `expires_at` None: until revoked. Without `scopes` it only reads.

    It replaces an unused token with the same `request_key`: of a form that was sent twice, only the last answer is
    shown. If the user already has `max_tokens` tokens, it replaces the least recently used token.
    """
    token = PREFIX + secrets.token_urlsafe(_ENTROPY_BYTES)
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user.pk)  # concurrent issues must not exceed the limit
        tokens = ApiToken.objects.filter(user=user).order_by(Coalesce("used_at", "created_at").desc(), "-pk")
        repeated = Q(request_key=request_key, used_at=None) if request_key else Q(pk__in=[])
        survivors = list(tokens.exclude(repeated).values_list("pk", flat=True)[: max_tokens - 1])
        replaced = list(tokens.exclude(pk__in=survivors))
        tokens.filter(pk__in=[row.pk for row in replaced]).delete()
        ApiToken.objects.create(
            user=user, digest=token_digest(token), hint=token[:_HINT_CHARACTERS], expires_at=expires_at,
            scopes=[scope.value for scope in Scope if scope in tuple(scopes)], request_key=request_key,
        )  # fmt: skip
    return IssuedToken(token, tuple(map(str, replaced)))


def issued_by_request(user: User, request_key: str) -> QuerySet[ApiToken]:
    """The tokens of `user` that requests with this key have issued."""
    return ApiToken.objects.filter(user=user, request_key=request_key)


def default_expiry() -> datetime:
    """The expiry of a token for which its user chooses no other."""
    return timezone.now() + timedelta(days=settings.WEIR_TOKEN_DAYS)


def tokens_of(user: User) -> QuerySet[ApiToken]:
    """The tokens of a user, newest first, with those that have expired."""
    return ApiToken.objects.filter(user=user).order_by("-created_at", "-pk")


def revoke(user: User, token: ApiToken, *, by: ApiToken | None = None) -> None:
    """Revokes a token of `user`. The token `by` of the request may revoke others only with all scopes.

    Raises:
        Forbidden: the token of the request lacks a scope.
    """
    if token != by and user.token_scopes is not None and not user.token_scopes.issuperset(Scope):
        raise Forbidden("This token may not revoke others: it needs all scopes.")
    token.delete()


def find(token: str) -> ApiToken | None:
    """The row of `token` with its user; None if no such token exists. Sets `used_at`, to the minute."""
    row = ApiToken.objects.select_related("user").filter(digest=token_digest(token)).first()
    if row is not None:
        stale = Q(used_at=None) | Q(used_at__lt=Now() - _USED_AT_PRECISION)
        ApiToken.objects.filter(stale, pk=row.pk).update(used_at=Now())
    return row


def token_digest(token: str) -> str:
    """SHA-256 in hex. Tokens are random and cannot be guessed, so they need no slow hash."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
