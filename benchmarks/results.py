"""What was measured, and latest.json."""

import json
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

OWN: Final = "weir"


@dataclass(kw_only=True)
class Measurement:
    """One system on one workload. `state` is "done", "missing", "did not finish" or "failed"."""

    unit: str
    state: str = "missing"
    runs: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    rows: int = 0
    differences: int | None = None  #: rows that differ from the answer; None: not compared

    @property
    def rate(self) -> float | None:
        return statistics.median(self.runs) if self.runs else None

    @property
    def verified(self) -> bool:
        return self.differences == 0

    @property
    def rows_per_cpu_second(self) -> float | None:
        used = statistics.median(self.cpu_seconds) if self.cpu_seconds else 0.0
        return self.rows / used if used else None

    def add(self, *, rows: int, seconds: float, cpu_seconds: float) -> None:
        self.rows = rows
        self.runs.append(rows / seconds)
        self.cpu_seconds.append(cpu_seconds)

    def to_json(self) -> dict[str, Any]:
        return {
            "rate": self.rate,
            "unit": self.unit,
            "runs": self.runs,
            "verified": self.verified,
            "state": self.state,
            "rows": self.rows,
            "cpu_seconds": self.cpu_seconds,
        }


def ratio_to_best_peer(systems: Mapping[str, Measurement]) -> float | None:
    """Weir's rate over the best rate of a peer, both with right output; None where there are not both."""
    own = systems.get(OWN)
    if own is None or own.rate is None or not own.verified:
        return None
    peers = [m.rate for name, m in systems.items() if name != OWN and m.rate is not None and m.verified]
    return own.rate / max(peers) if peers else None


def write(path: Path, results: Mapping[str, Mapping[str, Measurement]], titles: Mapping[str, str]) -> None:
    """Replaces the file; whoever reads it never sees half of it."""
    found = {
        name: {
            "title": titles[name],
            "systems": {system: measured.to_json() for system, measured in systems.items()},
            "ratio_to_best_peer": ratio_to_best_peer(systems),
        }
        for name, systems in results.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    temporary.rename(path)


def load_average() -> str:
    """How busy the machine is with everything: rates from a busy one count only as ratios."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def all_right(results: Iterable[Mapping[str, Measurement]]) -> bool:
    """Whether every system that gave a result gave a right one, and Weir did."""
    for systems in results:
        if any(m.state == "done" and not m.verified for m in systems.values()):
            return False
        if OWN in systems and systems[OWN].state != "done":
            return False
    return True
