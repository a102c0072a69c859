"""Bounds the time for which a lost host of the console holds locks in Postgres."""

from typing import Any, Final
from weakref import WeakSet

from django.apps import AppConfig
from django.db.backends.signals import connection_created

from runtime.keepalive import SERVER_KEEPALIVES

_BOUNDED: Final[WeakSet[Any]] = WeakSet()  #: sessions, which the pool of the web process hands out again and again


class RunsConfig(AppConfig):
    name = "console.runs"

    def ready(self) -> None:
        connection_created.connect(_set_keepalives, dispatch_uid="keepalives")


def _set_keepalives(connection: Any, **_: Any) -> None:
    """Without an entry in Django's log of queries, as for other commands of a new connection."""
    session = connection.connection
    if session not in _BOUNDED:
        session.execute(SERVER_KEEPALIVES)
        _BOUNDED.add(session)
