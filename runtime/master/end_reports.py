"""Live reports of a run after its last attempt, while the commit of its output or the delivery of epochs is waited for.

No attempt reports any more. A thread reports, since a commit may block for minutes: a job master that waits is not
silent.
"""

import threading
from collections.abc import Mapping
from typing import Any, Final, Self

import structlog

from runtime.core.job.ids import OperatorId
from runtime.errors import EnvironmentFailure
from runtime.run_store import RunStore

REPORT_INTERVAL_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 2.0
log = structlog.get_logger()


class EndReports:
    """A context. Its reports have the numbers of `newest`, the last report of the last attempt, and a part `ending`."""

    def __init__(self, records: RunStore, newest: Mapping[str, Any]) -> None:
        slots = [{**slot, "seen_ms_ago": None} for slot in newest.get("slots", ())]  # they have ended
        self._records = records
        self._newest = {**newest, "slots": slots, "checkpoint": None, "sources_paused": False}
        self._ending: Mapping[str, Any] = {"phase": "commit"}
        self._waited_s = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._report, name="end reports", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closed.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def on_commit_failure(self, error: str) -> None:
        self._ending = {"phase": "commit", "error": error}

    def on_delivered(self) -> None:
        self._ending = {"phase": "commit"}

    def on_backlog(self, undelivered: Mapping[OperatorId, int]) -> None:
        """Sets the number of undelivered epochs by sink."""
        self._ending = {"phase": "delivery", "undelivered": dict(undelivered)}

    def _report(self) -> None:
        while not self._closed.wait(REPORT_INTERVAL_S):
            self._waited_s += REPORT_INTERVAL_S
            ending = {**self._ending, "waited_ms": round(self._waited_s * 1000)}
            try:
                self._records.write_live({**self._newest, "ending": ending})
            except EnvironmentFailure as error:
                log.warning("no live report could be written", error=str(error))
