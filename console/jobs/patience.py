"""Doing without Postgres for a while: what to call "away", and how to wait for its return."""

import time
from collections.abc import Callable
from typing import TypeVar

import structlog
from django.db import InterfaceError, OperationalError, connection

T = TypeVar("T")

AWAY = (OperationalError, InterfaceError)

log = structlog.get_logger(__name__)


def forget_connection() -> None:
    """A connection that failed is never used again; the next query makes a new one."""
    try:
        connection.close()
    except AWAY:
        connection.connection = None


def when_back(act: Callable[[], T], give_up: Callable[[], bool], pause_s: float = 0.5) -> T | None:
    """Do `act` as soon as Postgres answers. None when `give_up` says so first.

    `act` may be repeated, so it must be conditional on the state that it expects.
    """
    while True:
        try:
            return act()
        except AWAY as error:
            log.warning("postgres is away", error=str(error).strip())
            forget_connection()
            if give_up():
                return None
            time.sleep(pause_s)
