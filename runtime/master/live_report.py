"""Schedule of an attempt's live reports: about once a second, and a last report at the end.

Reports have a thread and a database connection of their own: a slow insert delays no checkpoint. A report is skipped
while an earlier report is queued. The last report is never skipped: it has the final numbers. The history of the
numbers (`metrics_history`) travels with the reports.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import structlog

from runtime.core.checkpoint.coordinator import Coordinator
from runtime.errors import EnvironmentFailure
from runtime.master.metadata_thread import MetadataThread
from runtime.master.metrics_history import MetricsHistory
from runtime.master.slot_monitor import SlotMonitor
from runtime.run_store import PendingProgress, RunStore

LIVE_INTERVAL_MS: Final = 1_000
log = structlog.get_logger()


class LiveReports:
    """Owned by the master's loop. Times are monotonic milliseconds.

    Args:
        facts: returns entries that are added to every report.
        now_ms: milliseconds since the epoch.
    """

    def __init__(
        self,
        monitor: SlotMonitor,
        coordinator: Coordinator,
        history: MetricsHistory,
        records: RunStore,
        facts: Callable[[], Mapping[str, Any]],
        now_ms: Callable[[], int],
    ) -> None:
        self._monitor, self._coordinator, self._history = monitor, coordinator, history
        self._records, self._facts, self._now_ms = records, facts, now_ms
        self._thread = MetadataThread(_log_failure, "reports")
        self._written_at = 0.0
        self._is_closed = False
        self.newest: Mapping[str, Any] = {}
        self.not_triggered = 0  #: checkpoints that could not begin: no id, or an error

    def write_if_due(self, now: float) -> None:
        if now - self._written_at >= LIVE_INTERVAL_MS:
            self._written_at = now
            self._history.sample(self._monitor.metrics(), self._monitor.processes(), self._now_ms())
            if not self._thread.is_behind:
                self._write(now, once=True)

    def write_last(self, now: float, *, is_end: bool) -> None:
        """Writes the last report. At the end of the job it waits for the database, as all final records do."""
        self._history.end(self._monitor.metrics(), self._monitor.processes(), self._now_ms())
        self._write(now, once=not is_end)

    def close(self, timeout_s: float) -> None:
        """Waits for the last report, for at most about twice `timeout_s`. Later reports are dropped.

        A report that still waits for the database would take the token of the next attempt.
        """
        self._thread.close(timeout_s)
        self._is_closed = True

    def _write(self, now: float, *, once: bool) -> None:
        live = self._monitor.report(now, self._now_ms())
        if self.not_triggered:
            live["counters"]["checkpoints_not_triggered"] = self.not_triggered
        progress, names = self._coordinator.progress, ("number", "kind", "acknowledged", "subtasks")
        checkpoint = None if progress is None else dict(zip(names, progress, strict=True))
        live |= {"checkpoint": checkpoint, **self._history.checkpoint_facts, **self._facts()}
        self.newest = live
        self._thread.submit(partial(self._store, live, self._coordinator.progress_by_checkpoint()), once=once)

    def _store(self, live: Mapping[str, Any], pending: PendingProgress) -> None:
        """Runs on the thread of the reports. Intervals that the database refuses are dropped: reports go on."""
        if not self._is_closed:
            self._records.write_live(live, pending)
        intervals = self._history.pending()
        if self._is_closed or not intervals:
            return
        try:
            self._records.add_history(intervals)
        except EnvironmentFailure:
            raise
        except Exception as error:
            log.error("numbers of the history are lost", error=f"{type(error).__name__}: {error}")
        self._history.on_written(intervals)


def _log_failure(error: BaseException) -> None:
    log.error("live reports end", error=f"{type(error).__name__}: {error}")
