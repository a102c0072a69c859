"""Whether the console has what it needs, for `/readyz` and for the page of the cluster.

It needs Postgres, the broker, space on its disks, and passes of the reconciler.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerError

from console import formats
from console.celery import app
from console.checkpoints.file_systems import file_systems
from console.health import passes

DATABASE: Final = "database"
RECONCILER: Final = "reconciler"
_BROKER_TIMEOUT_S = 2


class Unavailable(Exception):
    """A part is not as the console needs it; the text says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """The answer of a part: `text` begins with "ok" or "unavailable"."""

    is_ok: bool
    text: str


class Readiness:
    """Caches the last probe, since the endpoint is public: only a single request at a time probes the dependencies.

    Concurrent requests get the previous result, whatever its age, without a connection; only the first probe blocks.
    """

    def __init__(self, probes: Mapping[str, Callable[[], str | None]], cache_s: float = 1.0) -> None:
        self._probes = probes
        self._cache_s = cache_s  #: lifetime of a result, in seconds
        self._probing = threading.Lock()
        self._parts: dict[str, Part] | None = None
        self._probed_at = 0.0

    def parts(self) -> dict[str, Part]:
        """The answers by name."""
        if self._parts is not None and time.monotonic() - self._probed_at < self._cache_s:
            return self._parts
        if self._probing.acquire(blocking=self._parts is None):
            try:
                if self._parts is None or time.monotonic() - self._probed_at >= self._cache_s:
                    self._parts = self._ask()
                    self._probed_at = time.monotonic()
            finally:
                self._probing.release()
        assert self._parts is not None, "the first request has waited for the first probe"
        return self._parts

    def clear(self) -> None:
        self._parts = None

    def _ask(self) -> dict[str, Part]:
        """The answers. Without the database, the probe of the reconciler would wait for a connection again."""
        parts: dict[str, Part] = {}
        for name, ask in self._probes.items():
            is_known = name != RECONCILER or DATABASE not in parts or parts[DATABASE].is_ok
            parts[name] = _probe(ask) if is_known else Part(is_ok=False, text="unavailable: unknown without database")
        return parts


def _probe(ask: Callable[[], str | None]) -> Part:
    """`ask` returns a remark on a part that is well, or None."""
    try:
        remark = ask()
    except Unavailable as reason:
        return Part(is_ok=False, text=f"unavailable: {reason}")
    except (DatabaseError, InterfaceError, BrokerError, OSError) as error:
        return Part(is_ok=False, text=f"unavailable: {type(error).__name__}")
    return Part(is_ok=True, text=f"ok: {remark}" if remark else "ok")


def _query_database() -> None:
    """Queries a table of Weir, so that the probe also fails before the migrations."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM weir_run LIMIT 1")


def _connect_broker() -> None:
    with app.connection_for_read() as broker:
        broker.ensure_connection(max_retries=1, interval_start=0, timeout=_BROKER_TIMEOUT_S)


def _measure_disks() -> str | None:
    """How much is free on the disk with the least free space. Folders are not named: the answer is public."""
    systems = [system for system in file_systems() if system.free_bytes is not None]
    least = min(systems, key=lambda system: system.free_bytes or 0, default=None)
    if least is None:
        return None
    if least.is_low:
        raise Unavailable(f"{least.free_words}; WEIR_MIN_FREE_MB is {settings.WEIR_MIN_FREE_MB}")
    return least.free_words


def _read_reconciler_pass() -> None:
    now = timezone.now()
    since = passes.reconciler_silent_since(now)
    if since is not None:
        lasted = f"for {formats.since(since, now)}" if since < now else "before the clock was set back"
        raise Unavailable(f"no pass since {formats.utc(since)}, {lasted}")


READINESS: Final = Readiness(
    {
        DATABASE: _query_database,
        "broker": _connect_broker,
        "disk": _measure_disks,
        RECONCILER: _read_reconciler_pass,
    }
)
