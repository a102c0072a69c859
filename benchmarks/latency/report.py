"""The figures of L1: percentiles of the times of rows, of Weir and of its peers."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.figures import Figure, Report
from benchmarks.latency.job import Arrivals, Pace

RATES: Final = (10_000, 100_000, 300_000)
WARM_UP_S: Final = 4.0
PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9}
TARGETS_MS: Final = {("stateless", 100_000): 20.0, ("running", 100_000): 50.0}  #: p99, uncommitted
MAX_RATIO: Final = 1.0  #: of the p99 to that of Flink, at the rates of `TARGETS_MS`
BIN_S: Final = 0.1
FLINK: Final = "Flink"


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds. `series`: the p99 of the uncommitted rows that were due in each tenth of a second."""

    job: str
    rate: int
    uncommitted: dict[str, float]
    committed: dict[str, float]
    checkpoint_ms: float
    series: tuple[float, ...]
    commits: tuple[float, ...]  #: seconds since the first measured row
    rows: int
    expected: int  #: rows that were due
    label: str  #: of the rate


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLatency:
    """Milliseconds of a peer. `system`: its name, with the settings of this run."""

    job: str
    rate: int
    system: str
    uncommitted: dict[str, float]
    committed: dict[str, float]

    @property
    def title(self) -> str:
        return f"{self.job}, {_label(self.rate)}: {self.system}"


def latency(name: str, pace: Pace, noted: Arrivals, checkpoint_ms: float, label: str = "") -> Latency:
    due = pace.due_s(noted.ids)
    measured = due >= pace.began_s + WARM_UP_S
    uncommitted_ms = (noted.arrived - due)[measured] * 1000
    bins = ((due[measured] - pace.began_s - WARM_UP_S) / BIN_S).astype(np.int64)
    commits = np.unique(noted.committed[measured])
    return Latency(
        job=name,
        rate=pace.rate,
        uncommitted=_percentiles(uncommitted_ms),
        committed=_percentiles((noted.committed - due)[measured] * 1000),
        checkpoint_ms=checkpoint_ms,
        series=tuple(
            round(float(np.percentile(uncommitted_ms[bins == each], 99)), 2) if (bins == each).any() else 0.0
            for each in range(int(bins.max()) + 1)
        ),
        commits=tuple(round(float(at - pace.began_s - WARM_UP_S), 3) for at in commits),
        rows=len(noted.ids),
        expected=pace.rows,
        label=label or _label(pace.rate),
    )


def peer_latency(name: str, pace: Pace, system: str, noted: Arrivals) -> PeerLatency:
    due = pace.due_s(noted.ids)
    measured = due >= pace.began_s + WARM_UP_S
    uncommitted, committed = (
        _percentiles((times - due)[measured] * 1000) for times in (noted.arrived, noted.committed)
    )
    return PeerLatency(job=name, rate=pace.rate, system=system, uncommitted=uncommitted, committed=committed)


def _percentiles(values: npt.NDArray[np.float64]) -> dict[str, float]:
    return {name: round(float(np.percentile(values, share)), 2) for name, share in PERCENTILES.items()}


def _label(rate: int) -> str:
    return f"{rate:,} rows/s"


def report(latencies: Sequence[Latency], peers: Sequence[PeerLatency] = (), lines: Sequence[str] = ()) -> Report:
    """Medians over rounds."""
    wrong = tuple(
        f"{each.rows:,} rows of {each.expected:,}"
        for each in latencies
        if each.job == "stateless" and each.rows != each.expected
    )
    details = {
        "bin_s": BIN_S,
        "latency": {f"{each.job}, {each.label}": asdict(each) for each in latencies},
        "peers": {each.title: asdict(each) for each in peers},
    }
    figures = (*_own(latencies), *_of_peers(peers), *_ratios(latencies, peers))
    return Report(figures=figures, lines=tuple(lines), wrong=wrong, details=details)


def _own(latencies: Sequence[Latency]) -> Iterator[Figure]:
    by_rate: dict[tuple[str, str], list[Latency]] = {}
    for each in latencies:
        by_rate.setdefault((each.job, each.label), []).append(each)
    for (name, label), group in by_rate.items():
        for clock in ("uncommitted", "committed"):
            for share in PERCENTILES:
                runs = tuple(getattr(each, clock)[share] for each in group)
                target = TARGETS_MS.get((name, group[0].rate)) if (clock, share) == ("uncommitted", "p99") else None
                title = f"{name}, {label}: {clock}, {share}"
                yield Figure(name=title, value=_median(runs), unit="ms", digits=1, at_most=target, runs=runs)
        title = f"{name}, {label}: duration of checkpoints"
        yield Figure(name=title, value=_median([each.checkpoint_ms for each in group]), unit="ms", digits=0)
        if label not in map(_label, RATES):
            rates = [float(each.rate) for each in group]
            yield Figure(name=f"{name}, {label}", value=_median(rates), unit="rows/s", digits=0)


def _of_peers(peers: Sequence[PeerLatency]) -> Iterator[Figure]:
    for runs in _by_title(peers):
        values = tuple(each.uncommitted["p99"] for each in runs)
        yield Figure(name=f"{runs[0].title}, p99", value=_median(values), unit="ms", digits=1, runs=values)


def _ratios(latencies: Sequence[Latency], peers: Sequence[PeerLatency]) -> Iterator[Figure]:
    """The p99 relative to the smallest p99 of Flink at the same rate."""
    best: dict[tuple[str, str], float] = {}
    for runs in _by_title([each for each in peers if each.system.startswith(FLINK)]):
        at = runs[0].job, _label(runs[0].rate)
        best[at] = min(best.get(at, np.inf), _median([each.uncommitted["p99"] for each in runs]))
    for (name, label), of_flink in best.items():
        group = [each for each in latencies if (each.job, each.label) == (name, label)]
        if group:
            value = _median([each.uncommitted["p99"] for each in group]) / of_flink
            target = MAX_RATIO if (name, group[0].rate) in TARGETS_MS else None
            title = f"{name}, {label}: p99 to that of Flink, best of the settings tried"
            yield Figure(name=title, value=value, unit="x", at_most=target)


def _by_title(peers: Sequence[PeerLatency]) -> list[list[PeerLatency]]:
    """The runs of each job, rate and system."""
    runs: dict[str, list[PeerLatency]] = {}
    for each in peers:
        runs.setdefault(each.title, []).append(each)
    return list(runs.values())


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
