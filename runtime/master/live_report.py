"""Schedule of an attempt's live reports: about once a second, and a last report at the end.

A report is skipped while more important writes are queued. The last report is never skipped: it has the final numbers.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from runtime.core.checkpoint.coordinator import Coordinator
from runtime.master.metadata_thread import MetadataThread
from runtime.master.slot_monitor import SlotMonitor
from runtime.run_store import RunStore

LIVE_INTERVAL_MS: Final = 1_000


class LiveReports:
    """Owned by the master's loop. Times are monotonic milliseconds.

    Args:
        facts: returns entries that are added to every report.
    """

    def __init__(
        self,
        monitor: SlotMonitor,
        coordinator: Coordinator,
        metadata_thread: MetadataThread,
        records: RunStore,
        facts: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._monitor, self._coordinator = monitor, coordinator
        self._metadata_thread, self._records, self._facts = metadata_thread, records, facts
        self._written_at = 0.0
        self.not_triggered = 0  #: checkpoints that could not begin: no id, or an error

    def write_if_due(self, now: float) -> None:
        if now - self._written_at >= LIVE_INTERVAL_MS and not self._metadata_thread.is_behind:
            self._written_at = now
            self._write(now, once=True)

    def write_last(self, now: float, *, is_end: bool) -> None:
        """Writes the last report. At the end of the job it waits for the database, as all final records do."""
        self._write(now, once=not is_end)

    def _write(self, now: float, *, once: bool) -> None:
        live = self._monitor.report(now)
        if self.not_triggered:
            live["counters"]["checkpoints_not_triggered"] = self.not_triggered
        progress, names = self._coordinator.progress, ("number", "kind", "acknowledged", "subtasks")
        checkpoint = None if progress is None else dict(zip(names, progress, strict=True))
        live |= {"checkpoint": checkpoint, **self._facts()}
        self._metadata_thread.submit(partial(self._records.write_live, live), once=once)
