"""Record counts of an application from Spark's event log, which is independent of Weir's own counters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Records that the finished tasks have read and written, by Spark's task metrics."""

    read: int = 0
    written: int = 0

    def plus(self, read: int, written: int) -> RecordCounts:
        return RecordCounts(self.read + read, self.written + written)


def records_by_job(folder: Path, application: str) -> dict[str, RecordCounts]:
    """The records that the application has read from and written to files, by description of the Spark job.

    Jobs with the same description are added up, for example after a restart of the application.
    """
    counts: dict[str, RecordCounts] = {}
    for log in _logs(folder):
        described: dict[int, str] = {}
        for number, event in enumerate(_events(log)):
            match event.get("Event"):
                case "SparkListenerApplicationStart" if event["App Name"] != application:
                    break
                case "SparkListenerJobStart":
                    name = str((event.get("Properties") or {}).get("spark.job.description", f"job {number}"))
                    described |= dict.fromkeys(event["Stage IDs"], name)
                case "SparkListenerTaskEnd":
                    metrics = event.get("Task Metrics") or {}
                    read = int(metrics.get("Input Metrics", {}).get("Records Read", 0))
                    written = int(metrics.get("Output Metrics", {}).get("Records Written", 0))
                    name = described.get(event["Stage ID"], "")
                    counts[name] = counts.get(name, RecordCounts()).plus(read, written)
    return counts


def _logs(folder: Path) -> list[list[Path]]:
    """The log files of each application, in order. An application has a single file, or a folder with parts."""
    if not folder.is_dir():
        return []
    return [sorted(path.glob("events_*")) if path.is_dir() else [path] for path in sorted(folder.iterdir())]


def _events(log: list[Path]) -> Iterator[dict[str, Any]]:
    """The events of a log, up to a line that is still being written."""
    for part in log:
        for line in part.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                return
