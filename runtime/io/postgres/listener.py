"""Notifications of new operations: LISTEN on a connection of its own."""

import threading
from collections.abc import Callable
from typing import Any, Final

import psycopg

from runtime.errors import EnvironmentFailure
from runtime.io.postgres.store import connect

POLL_INTERVAL_S: Final = 1.0


OPERATIONS_CHANNEL: Final = "weir_operation"


class OperationsListener:
    """Calls `poke` when the run has a new operation: at once by LISTEN, and once a second as a fallback."""

    def __init__(self, url: str, run: int, poke: Callable[[], None]) -> None:
        self._url, self._run, self._poke = url, run, poke
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="operations", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _listen(self) -> None:
        while not self._closing.is_set():
            try:
                with connect(self._url) as connection:
                    connection.execute(f"LISTEN {OPERATIONS_CHANNEL}")
                    self._poll_notifications(connection)
            except (EnvironmentFailure, psycopg.Error):
                self._closing.wait(POLL_INTERVAL_S)

    def _poll_notifications(self, connection: "psycopg.Connection[dict[str, Any]]") -> None:
        while not self._closing.is_set():
            runs = [note.payload for note in connection.notifies(timeout=POLL_INTERVAL_S, stop_after=1)]
            if not runs or runs[0] == str(self._run):
                self._poke()
