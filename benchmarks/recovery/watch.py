"""Observes a recovery from outside: database rows, files and log lines, with the wall clock's time.

All processes share a machine and its clock. This module only observes.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.recovery.job import RecoveryParams
from benchmarks.recovery.place import Run

_POLL_S: Final = 0.01
_PATIENCE_S: Final = 120.0
_POLLS_PER_ROW: Final = 5  #: polls of the output folder per poll of the database row
MAX_LAG_S: Final = 2.0  #: maximum lag of a source that has caught up; its report is up to 1.5 s old

#: Log event -> moment of the recovery; the first event after the fault counts.
_LOG_EVENTS: Final = {
    "attempt fails": "noticed",
    "job master ended": "noticed",
    "attempt ended": "wound down",
    "job master started": "master started",
    "master begins": "master begins",
    "restoring": "restoring",
    "every slot is there": "slots there",
    "every slot is deployed": "state restored",
}


@dataclass(kw_only=True)
class Recovery:
    """Seconds from a fault to the first observation of each moment."""

    fault: str
    seconds: dict[str, float] = field(default_factory=dict)


def committed_files(output: Path) -> Iterator[tuple[int, int]]:
    """Token and checkpoint of each committed file: `part-<job>-<token>-<operator>-<subtask>-<checkpoint>-<n>`."""
    with os.scandir(output) as entries:
        for entry in entries:
            if entry.name.startswith("part-"):
                _, _, token, _, _, checkpoint, _ = entry.name.split("-")
                yield int(token), int(checkpoint)


class Watch:
    """Begins to observe before the fault; `wait_for_recovery` blocks."""

    def __init__(self, run: Run, params: RecoveryParams) -> None:
        self._run, self._params, self._output = run, params, Path(params.output_dir)
        self._token = int(run.row()["token"])
        self._logs = {path: path.stat().st_size for path in (run.log, *run.supervisors)}

    def wait_for_recovery(self, fault: str, at: float) -> Recovery:
        """Observes until the job has caught up. `at`: the wall clock's time of the fault, in seconds.

        Raises:
            TimeoutError: the job has not caught up in time.
            RuntimeError: the run has failed or ended.
        """
        moments: dict[str, float] = {}
        looks = 0
        while not {"caught up", "committed"} <= moments.keys():
            now = time.time()
            if now - at > _PATIENCE_S:
                raise TimeoutError(f"{fault}: after {_PATIENCE_S:g} s only {moments}")
            if looks % _POLLS_PER_ROW == 0:
                self._look_at_row(moments, at)
            if "running" in moments:
                self._look_at_output(moments, at)
            looks += 1
            time.sleep(_POLL_S)
        return Recovery(fault=fault, seconds={**log_moments(self._logs, at), **moments})

    def _look_at_row(self, moments: dict[str, float], at: float) -> None:
        row = self._run.row()
        if row["state"] not in ("running", "restarting", "starting"):
            raise RuntimeError(f"the run is {row['state']}: {row['failure']}")
        if int(row["token"]) == self._token:
            return
        moments.setdefault("new attempt", time.time() - at)
        if row["state"] != "running":  # the row has its new token shortly before its new state
            moments.setdefault("restarting", time.time() - at)
        elif "restarting" in moments:
            moments.setdefault("running", time.time() - at)
            if is_in_pace(row, self._params, since=at + moments["running"]):
                moments.setdefault("caught up", time.time() - at)

    def _look_at_output(self, moments: dict[str, float], at: float) -> None:
        if "committed" not in moments and any(token > self._token for token, _ in committed_files(self._output)):
            moments["committed"] = time.time() - at


def log_moments(logs: Mapping[Path, int], at: float) -> dict[str, float]:
    """Moments in the logs, in seconds after `at`. `logs`: by file, the byte offset from which it is read."""
    moments: dict[str, float] = {}
    for path, start in logs.items():
        with path.open("rb") as log:
            log.seek(start)
            for line in records(log.read().decode(errors="replace")):
                name = _LOG_EVENTS.get(line.get("event", ""))
                moment = datetime.fromisoformat(line["timestamp"]).timestamp() if name else 0.0
                if name and moment >= at:
                    moments[name] = min(moment - at, moments.get(name, moment))
    return moments


def records(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in `text`: the JVM writes other lines, and two processes may interleave their lines."""
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        try:
            record, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            record, end = None, at + 1
        if isinstance(record, dict):
            yield record
        at = text.find("{", end)


def is_in_pace(row: dict[str, Any], params: RecoveryParams, since: float = 0.0) -> bool:
    """Whether the live report, if written after `since`, shows sources that keep up with the pace."""
    live, written = row["live"] or {}, row["live_at"]
    watermark = live.get("operators", {}).get("numbers", {}).get("watermark")
    if watermark is None or written is None or written.timestamp() < since:
        return False
    return int(watermark) + 1 >= params.due(written.timestamp() * 1000) - MAX_LAG_S * params.rows_per_second


def steady_state_check(run: Run, params: RecoveryParams, checkpoints: int) -> Callable[[], bool]:
    """A check that the attempt runs steadily: it keeps up with the pace and has `checkpoints` completed checkpoints."""

    def is_settled() -> bool:
        row = run.row()
        ready = row["state"] == "running" and len((row["live"] or {}).get("slots", ())) > 0
        return ready and is_in_pace(row, params) and len(run.checkpoints(row["token"])) >= checkpoints

    return is_settled
