"""Idempotency of POST requests: a repetition with the same `Idempotency-Key` has the answer of the first request.

The row with the key, the digest of the request and the answer is written in the transaction of the request. Effects and
answer are therefore stored together or not at all. A refused request stores nothing: its repetition is a request of its
own. A concurrent repetition waits at the unique index until the first request has ended.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec
from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.models import IdempotentRequest, Scope, User
from console.accounts.refusals import Forbidden, Refused
from console.api.parsing import MsgspecJson
from console.operations.services import check_key

KEY_HEADER: Final = "Idempotency-Key"
REPLAY_HEADER: Final = "Idempotent-Replay"  #: "true" in the answer to a repetition
_STORED_HEADERS: Final = ("Location", "Retry-After")


def answer_once(post: Callable[..., Response], request: Request, *args: Any, **kwargs: Any) -> Response:
    """The answer of `post`, or that of the first request with the same key of the same user.

    Raises:
        Refused: the key cannot be stored, was used for another request, or the token lacks a scope of the first.
    """
    key = request.headers[KEY_HEADER]
    check_key(key)
    digest = _digest(request)
    with transaction.atomic():
        user = cast(User, request.user)
        scopes = user.token_scopes
        facts = {"digest": digest, "scopes": None if scopes is None else sorted(scopes)}
        row, is_new = IdempotentRequest.objects.get_or_create(user=user, key=key, defaults=facts)
        if not is_new:
            return _replay(row, digest, scopes)
        response = post(request, *args, **kwargs)
        row.status = response.status_code
        row.headers = {name: response[name] for name in _STORED_HEADERS if name in response}
        row.answer = MsgspecJson().render(response.data).decode()
        row.save()
    return response


def reused_key() -> Refused:
    return Refused("idempotency-key-reused", f"This {KEY_HEADER} was used for another request.", KEY_HEADER)


def _digest(request: Request) -> str:
    body: Any = request.data
    if isinstance(body, bytes):  # JSON would have it in base64
        body = hashlib.sha256(body).hexdigest()
    parts = [request.get_full_path(), body]
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def _replay(row: IdempotentRequest, digest: str, scopes: frozenset[str] | None) -> Response:
    if scopes is not None and not scopes.issuperset(Scope if row.scopes is None else row.scopes):
        raise Forbidden("This token may not repeat the request: it lacks a scope of the first request.")
    if row.digest != digest:
        raise reused_key()
    headers = {**row.headers, REPLAY_HEADER: "true"}
    return Response(msgspec.json.decode(row.answer), status=row.status, headers=headers)
