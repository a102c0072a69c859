"""Checks addresses of channels, and reads their secrets for a sender.

An address begins with `http://` or `https://` for a webhook of Weir, which needs a signing secret. All other addresses
are those of Apprise, which has a scheme per service. Secrets are references, as in `console.jobs.models.Connection`.
"""

from typing import Final
from urllib.parse import quote, urlsplit

from runtime.access.redaction import REFERENCE
from runtime.access.secrets import check_references, resolve
from runtime.errors import JobRejected

_WEBHOOK_SCHEMES: Final = ("http", "https")
_WRITE_REFERENCE: Final = "write ${secret:NAME}, and set WEIR_SECRET_NAME where the console's workers run"


def is_webhook(address: str) -> bool:
    return urlsplit(address).scheme in _WEBHOOK_SCHEMES


def address_problem(address: str, *, is_signed: bool) -> str:
    """Why a channel cannot have the address, in a sentence; "" if it can. `is_signed`: it has a signing secret."""
    try:
        for part in address.partition("?"):  # an address of mail in the query looks like the end of a password
            check_references("address", part)
        scheme, host = urlsplit(address).scheme, urlsplit(address).hostname
    except JobRejected as error:
        return f"{error}"
    except ValueError as error:
        return f"The address is malformed: {error}."
    if REFERENCE.fullmatch(address):
        return ""
    if is_webhook(address):
        if not host:
            return "The address of a webhook names no host."
        return "" if is_signed else "A webhook needs a signing secret, by which its receiver knows the sender."
    if is_signed:
        return f"Only a webhook (https://…) has a signing secret, not {scheme or 'this address'}."
    return _apprise_problem(address, scheme)


def secret_problem(secret: str) -> str:
    """Why a signing secret is not valid; "" if it is."""
    if not secret or REFERENCE.fullmatch(secret):
        try:
            check_references("signing_secret", secret)
        except JobRejected as error:
            return str(error)
        return ""
    return f"The signing secret is no reference: {_WRITE_REFERENCE}."


def read_secrets(text: str) -> str:
    """The text with the values of its references, encoded for an address unless it is a single reference.

    Raises:
        JobRejected: a secret is not set on this host.
    """
    if REFERENCE.fullmatch(text):
        return resolve("address", text, ())
    return resolve("address", text, (), lambda value: quote(value, safe=""))


def _apprise_problem(address: str, scheme: str) -> str:
    from apprise import Apprise  # at the first use: it loads its services, which takes a second and 40 MB
    from apprise.manager_plugins import NotificationManager

    if scheme not in NotificationManager().schemas():
        return f"No service has the scheme {scheme or 'of this address'!r}. A webhook begins with https://."
    if REFERENCE.search(address):
        return ""
    service = Apprise.instantiate(address, suppress_exceptions=True)
    if service is None:
        return f"The address is incomplete or malformed for {scheme}://."
    if service.url() != service.url(privacy=True):
        return f"The address contains a secret: {_WRITE_REFERENCE}."
    return ""
