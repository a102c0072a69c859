"""Retries while Postgres is unreachable."""

import time
from collections.abc import Callable
from typing import TypeVar

import structlog
from django.db import InterfaceError, OperationalError, connection

T = TypeVar("T")

CONNECTION_ERRORS = (OperationalError, InterfaceError)
_PAUSE_S = 0.5

log = structlog.get_logger(__name__)


def close_failed_connection() -> None:
    """Closes a failed connection; the next query opens a fresh connection."""
    try:
        connection.close()
    except CONNECTION_ERRORS:
        connection.connection = None


def retry_until_reachable(act: Callable[[], T], give_up: Callable[[], bool]) -> T | None:
    """Calls `act` until Postgres answers. None if `give_up` returns true first.

    `act` may run twice, so its update must be conditional on the expected state.
    """
    while True:
        try:
            return act()
        except CONNECTION_ERRORS as error:
            log.warning("postgres is away", error=str(error).strip())
            close_failed_connection()
            if give_up():
                return None
            time.sleep(_PAUSE_S)


def ignore_outage(renew: Callable[[], T]) -> T | None:
    """Calls `renew`. Returns None while Postgres is away, since no other process can take the lease then."""
    try:
        return renew()
    except CONNECTION_ERRORS as error:
        log.warning("lease not renewed, postgres is away", error=str(error).strip())
        close_failed_connection()
        return None
