"""Sends a message to a channel: by a signed webhook of Weir, or by Apprise.

A webhook gets the message as JSON by POST. `Weir-Signature` is `sha256=` and the hexadecimal HMAC-SHA-256 of
`Weir-Timestamp`, a dot and the body, by the signing secret. A receiver compares it, and refuses old timestamps and ids
that it has. Any status from 200 to 299 is a receipt. Redirects are not followed.
"""

import hashlib
import hmac
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

import httpx
import msgspec

from console.alerts.addresses import is_webhook, read_secrets
from runtime.access.redaction import redact
from runtime.errors import JobRejected

TIMEOUT_S: Final = 10.0
MAX_ERROR: Final = 500  #: characters of a stored error


class DeliveryFailed(Exception):
    """A message was not accepted; the text is the reason, without secrets."""


def send(address: str, signing_secret: str, message: Mapping[str, Any]) -> None:
    """Sends the message once.

    Raises:
        DeliveryFailed: no receipt. The receiver may have the message nevertheless.
    """
    try:
        target = read_secrets(address)
        if is_webhook(target):
            _post(target, read_secrets(signing_secret), message)
        else:
            _notify(target, message)
    except JobRejected as error:
        raise DeliveryFailed(str(error)) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise DeliveryFailed(_reason(f"{type(error).__name__}: {error}")) from error


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """The value of `Weir-Signature`."""
    return f"sha256={hmac.new(secret.encode(), timestamp.encode() + b'.' + body, hashlib.sha256).hexdigest()}"


def _post(url: str, secret: str, message: Mapping[str, Any]) -> None:
    if not secret:
        raise DeliveryFailed("A webhook needs a signing secret, and the channel has none.")
    body, timestamp = msgspec.json.encode(message), str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Weir",
        "Weir-Delivery": str(message["id"]),
        "Weir-Timestamp": timestamp,
        "Weir-Signature": signature(secret, timestamp, body),
    }
    with httpx.stream("POST", url, content=body, headers=headers, timeout=TIMEOUT_S, trust_env=False) as answer:
        if not answer.is_success:
            raise DeliveryFailed(f"The receiver answered with status {answer.status_code}.")


def _notify(address: str, message: Mapping[str, Any]) -> None:
    from apprise import Apprise, LogCapture, NotifyType

    service = Apprise.instantiate(address, suppress_exceptions=True)
    if service is None:
        raise DeliveryFailed("Apprise cannot read the address.")
    kind = NotifyType.SUCCESS if message["event"] == "resolved" else NotifyType.WARNING
    body = f"{message['text']}\nAlert id: {message['id']}"
    with LogCapture(level=logging.WARNING, fmt="%(message)s") as captured:
        try:
            is_sent = service.notify(body=body, title=str(message["title"]), notify_type=kind)
        except Exception as error:  # of a service, which may raise any
            raise DeliveryFailed(_reason(f"{type(error).__name__}: {error}")) from error
        reason = captured.getvalue().strip()
    if not is_sent:
        raise DeliveryFailed(_reason(reason or "The service accepted no message."))


def _reason(text: str) -> str:
    """The reason of a failure without the secrets that this process has read."""
    return redact(text)[:MAX_ERROR]
