"""What checkpoints cost: `python -m benchmarks.intervals` runs one job without them, and at ever shorter intervals.

Slots are threads of this process, state and manifests go to a real folder and are synced. See README.md for how the
numbers are made.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from tqdm import tqdm

from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.coordinator import CoordinatorSettings
from runtime.dataflow import Dataflow
from runtime.hosts.local import run_local
from runtime.operators.aggregates import Count, Sum

RESULT: Final = Path("var/bench/intervals.json")
INTERVALS_MS: Final = (None, 10_000, 3_000, 1_000, 300, 100)
PARALLELISM: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One job from start to end."""

    interval_ms: int | None
    seconds: float
    processor_seconds: float
    checkpoints: int


def job(rows: int, keys: int) -> Dataflow:
    flow = Dataflow("intervals")
    numbers = flow.source("numbers", SequenceSource(rows=rows, keys=keys))
    windows = numbers.key_by("key").window(
        "windows", timedelta(seconds=1), "time", {"count": Count(), "sum": Sum("id")}
    )
    windows.sink("out", DiscardSink())
    return flow


def timed(rows: int, keys: int, interval_ms: int | None, folder: Path) -> Run:
    settings = CoordinatorSettings(interval_ms=interval_ms, min_pause_ms=0)
    began, worked = time.monotonic(), time.process_time()
    records = run_local(job(rows, keys), parallelism=PARALLELISM, storage=str(folder), settings=settings)
    return Run(
        interval_ms=interval_ms,
        seconds=time.monotonic() - began,
        processor_seconds=time.process_time() - worked,
        checkpoints=len(records.completed),
    )


def rounds(rows: int, keys: int, count: int) -> list[list[Run]]:
    """`count` rounds of one run per interval, in turns; one round before them does not count."""
    found = []
    with tqdm(total=(count + 1) * len(INTERVALS_MS), unit="run", disable=None) as bar:
        for _ in range(count + 1):
            one = []
            for interval_ms in INTERVALS_MS:
                with tempfile.TemporaryDirectory() as folder:
                    one.append(timed(rows, keys, interval_ms, Path(folder)))
                bar.update()
            found.append(one)
    return found[1:]


def summary(found: list[list[Run]]) -> list[dict[str, float | int | None]]:
    """Per interval: median seconds, and the median over rounds of the ratio to the run without checkpoints."""
    table: list[dict[str, float | int | None]] = []
    for number, interval_ms in enumerate(INTERVALS_MS):
        own = [one[number] for one in found]
        table.append(
            {
                "interval_ms": interval_ms,
                "checkpoints": statistics.median(run.checkpoints for run in own),
                "seconds": statistics.median(run.seconds for run in own),
                "processor_seconds": statistics.median(run.processor_seconds for run in own),
                "time_to_none": statistics.median(one[number].seconds / one[0].seconds for one in found),
                "processor_to_none": statistics.median(
                    one[number].processor_seconds / one[0].processor_seconds for one in found
                ),
            }
        )
    return table


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.intervals", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--keys", type=int, default=100_003)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--result", type=Path, default=RESULT)
    chosen = parser.parse_args(arguments)
    found = rounds(chosen.rows, chosen.keys, chosen.rounds)
    table = summary(found)
    sys.stdout.write("interval ms  checkpoints  seconds  processor s  time to none  processor to none\n")
    for row in table:
        sys.stdout.write(
            f"{row['interval_ms'] or 'none':>11}  {row['checkpoints']:>11}  {row['seconds']:>7.2f}"
            f"  {row['processor_seconds']:>11.2f}  {row['time_to_none']:>12.3f}  {row['processor_to_none']:>17.3f}\n"
        )
    chosen.result.parent.mkdir(parents=True, exist_ok=True)
    everything = {"rows": chosen.rows, "intervals": table, "runs": [[asdict(run) for run in one] for one in found]}
    chosen.result.write_text(json.dumps(everything, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
