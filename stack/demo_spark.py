"""What Spark's own event log says that an application has read and written. No number in it comes from Weir."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Records:
    """Of the tasks that have ended, by Spark's metrics."""

    read: int = 0
    written: int = 0

    def plus(self, read: int, written: int) -> Records:
        return Records(self.read + read, self.written + written)


def records_by_job(folder: Path, application: str) -> dict[str, Records]:
    """By the description of Spark's jobs: what the application of this name has read from and written to files.

    Jobs of the same description, such as those of an application that was restarted, are added up.
    """
    found: dict[str, Records] = {}
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
                    found[name] = found.get(name, Records()).plus(read, written)
    return found


def _logs(folder: Path) -> list[list[Path]]:
    """The files of each application, in their order: one file, or a folder with parts."""
    if not folder.is_dir():
        return []
    return [sorted(one.glob("events_*")) if one.is_dir() else [one] for one in sorted(folder.iterdir())]


def _events(log: list[Path]) -> Iterator[dict[str, Any]]:
    """A line that is still being written ends what can be read now."""
    for part in log:
        for line in part.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                return
