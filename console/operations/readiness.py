"""Whether the dependencies of the console answer, for `/readyz` and for the page of the cluster."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from django.db import DatabaseError, InterfaceError, connection
from kombu.exceptions import OperationalError as BrokerError

from console.celery import app

_BROKER_TIMEOUT_S = 2


class Readiness:
    """Caches the last probe, since the endpoint is public: only a single request at a time probes the dependencies.

    Concurrent requests get the previous result, whatever its age, without a connection; only the first probe blocks.
    """

    def __init__(self, probes: Mapping[str, Callable[[], None]], cache_s: float = 1.0) -> None:
        self._probes = probes
        self._cache_s = cache_s  #: lifetime of a result, in seconds
        self._probing = threading.Lock()
        self._parts: dict[str, str] | None = None
        self._probed_at = 0.0

    def parts(self) -> dict[str, str]:
        if self._parts is not None and time.monotonic() - self._probed_at < self._cache_s:
            return self._parts
        if self._probing.acquire(blocking=self._parts is None):
            try:
                if self._parts is None or time.monotonic() - self._probed_at >= self._cache_s:
                    self._parts = {name: _probe(ask) for name, ask in self._probes.items()}
                    self._probed_at = time.monotonic()
            finally:
                self._probing.release()
        assert self._parts is not None, "the first request has waited for the first probe"
        return self._parts

    def clear(self) -> None:
        self._parts = None


def _probe(ask: Callable[[], None]) -> str:
    try:
        ask()
    except (DatabaseError, InterfaceError, BrokerError, OSError) as error:
        return f"unavailable: {type(error).__name__}"
    return "ok"


def _query_database() -> None:
    """Queries a table of Weir, so that the probe also fails before the migrations."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM weir_run LIMIT 1")


def _connect_broker() -> None:
    with app.connection_for_read() as broker:
        broker.ensure_connection(max_retries=1, interval_start=0, timeout=_BROKER_TIMEOUT_S)


READINESS: Final = Readiness({"database": _query_database, "broker": _connect_broker})
