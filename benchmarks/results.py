"""The results of measurements, and the file latest.json."""

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import Report
from benchmarks.systems import SYSTEMS

OWN: Final = "weir"
LATEST: Final = "latest.json"


@dataclass(kw_only=True)
class RateMeasurement:
    """The runs of a system on a workload. `state`: "done", "not run", "missing", "did not finish" or "failed"."""

    unit: str
    state: str = "missing"
    runs: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  #: the states of runs without a result
    rows: int = 0
    rows_worked: int = 0  #: rows processed in the processor seconds of a run
    differences: int | None = None  #: rows of the small run that differ from the answer; None: not compared
    miscounted: list[str] | None = None  #: wrong totals of the measured run's sink; None: not compared
    peak_rss_bytes: list[int] = field(default_factory=list)  #: of all processes together
    checkpoint_bytes: list[int] = field(default_factory=list)  #: written in a run
    killed_s: list[float] = field(default_factory=list)  #: seconds of runs with a SIGKILL, which count for no rate

    @property
    def rate(self) -> float | None:
        return statistics.median(self.runs) if self.runs else None

    @property
    def is_verified(self) -> bool:
        return self.differences == 0 and not self.miscounted

    @property
    def rows_per_cpu_second(self) -> float | None:
        used = statistics.median(self.cpu_seconds) if self.cpu_seconds else 0.0
        return self.rows_worked / used if used else None

    def add(self, *, rows: int, seconds: float, cpu_seconds: float, rows_worked: int | None = None) -> None:
        self.state = "done"
        self.rows, self.rows_worked = rows, rows_worked or rows
        self.runs.append(rows / seconds)
        self.cpu_seconds.append(cpu_seconds)

    def add_lost_run(self, state: str) -> None:
        """Records a run without a result."""
        self.lost.append(state)
        if not self.runs:
            self.state = state

    def to_json(self) -> dict[str, Any]:
        return {
            "rate": self.rate,
            "unit": self.unit,
            "runs": self.runs,
            "verified": self.is_verified,
            "totals_verified": self.miscounted == [],
            "state": self.state,
            "lost": self.lost,
            "rows": self.rows,
            "rows_worked": self.rows_worked,
            "cpu_seconds": self.cpu_seconds,
            "peak_rss_bytes": self.peak_rss_bytes,
            "checkpoint_bytes": self.checkpoint_bytes,
            "killed_s": self.killed_s,
        }


def is_peer(system: str) -> bool:
    return system != OWN and not (system in SYSTEMS and SYSTEMS[system].is_batch)


def ratio_to_best_peer(systems: Mapping[str, RateMeasurement]) -> float | None:
    """Weir's rate over the best rate of a peer, both with correct output; None if either is missing."""
    return _ratio(systems, [name for name in systems if is_peer(name)])


def ratio_to_batch(systems: Mapping[str, RateMeasurement]) -> float | None:
    """Weir's rate over that of the best batch system, both with correct output; None if either is missing."""
    return _ratio(systems, [name for name in systems if name != OWN and not is_peer(name)])


def _ratio(systems: Mapping[str, RateMeasurement], names: Sequence[str]) -> float | None:
    measurement = systems.get(OWN)
    if measurement is None or measurement.rate is None or not measurement.is_verified:
        return None
    rates = [rate for name in names if (rate := systems[name].rate) is not None and systems[name].is_verified]
    return measurement.rate / max(rates) if rates else None


def geometric_mean(ratios: Mapping[str, float | None]) -> tuple[float | None, list[str]]:
    """The geometric mean of the ratios of workloads, and the names of those that have no ratio."""
    values = [ratio for ratio in ratios.values() if ratio is not None]
    return statistics.geometric_mean(values) if values else None, [name for name in ratios if ratios[name] is None]


def spread_to_peer(systems: Mapping[str, RateMeasurement]) -> float | None:
    """The largest ratio between two runs of Weir over that of the steadiest peer; None without two runs of both."""
    spreads = {
        name: max(measurement.runs) / min(measurement.runs)
        for name, measurement in systems.items()
        if len(measurement.runs) > 1 and measurement.is_verified
    }
    peers = [spread for name, spread in spreads.items() if is_peer(name)]
    return spreads[OWN] / min(peers) if OWN in spreads and peers else None


def entry(title: str, systems: Mapping[str, RateMeasurement]) -> dict[str, Any]:
    """The entry in latest.json of a workload whose result is a rate per system."""
    return {
        "title": title,
        "systems": {system: measured.to_json() for system, measured in systems.items()},
        "ratio_to_best_peer": ratio_to_best_peer(systems),
        "ratio_to_batch": ratio_to_batch(systems),
        "spread_to_peer": spread_to_peer(systems),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureResult:
    """A measurement whose result is figures. `state`: "done", "did not finish", "failed" or "interrupted".

    If the measurement is not done, `report` is the last preliminary report.
    """

    title: str
    state: str
    report: Report | None = None

    @property
    def is_right(self) -> bool:
        return self.state == "done" and self.report is not None and not self.report.wrong

    def to_json(self) -> dict[str, Any]:
        document = self.report.to_json() if self.report is not None else {"figures": []}
        return {"title": self.title, "state": self.state, **document}


def read(path: Path) -> dict[str, Any]:
    """The contents of latest.json; empty if the file is missing. Raises ValueError if it is not a JSON object."""
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not isinstance(entries, dict):
        raise ValueError("not a JSON object")
    return entries


def write(path: Path, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Replaces `entries` in the file `path`, with today's date, and keeps its other entries. The write is atomic."""
    document, today = read(path), datetime.now(UTC).date().isoformat()
    dated = {name: {**entry, "date": today} for name, entry in entries.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({**document, **dated}, indent=2) + "\n", encoding="utf-8")
    temporary.rename(path)


def load_average() -> str:
    """The machine's load average: rates under other load are comparable only as ratios."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def all_right(results: Iterable[Mapping[str, RateMeasurement]]) -> bool:
    """Whether all results are correct and Weir has a result for every run."""
    for systems in results:
        if any(m.state == "done" and not m.is_verified for m in systems.values()):
            return False
        if OWN in systems and (systems[OWN].state != "done" or systems[OWN].lost):
            return False
    return True
