"""Celery's beat by the monotonic clock.

Celery's scheduler compares the time of the day with the last time of each task, which it keeps in a file. After a clock
that was ahead is set back, such a task is not due until the clock reaches that time again, also after a restart.
"""

import time
from typing import Any

from celery.beat import Scheduler


class MonotonicScheduler(Scheduler):
    """Sends each task of `CELERY_BEAT_SCHEDULE` at the start and then once per period. Keeps no file.

    Tasks that depend on the time of the day, such as scheduled savepoints, look at the clock themselves.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._due_s: dict[str, float] = {}  #: by entry, on the monotonic clock
        super().__init__(*arguments, **options)

    def install_default_entries(self, data: Any) -> None:
        """Adds none: Celery's own entry deletes results, and the console stores no results."""

    def tick(self, *_: Any, **__: Any) -> float:
        """Sends the tasks that are due. Returns the seconds until the next one is."""
        entry: Any
        for name, entry in self.schedule.items():
            now = time.monotonic()
            if now >= self._due_s.get(name, now):
                self.apply_entry(entry, producer=self.producer)
                self._due_s[name] = now + entry.schedule.run_every.total_seconds()
        return max(0.0, min(self._due_s.values()) - time.monotonic())
