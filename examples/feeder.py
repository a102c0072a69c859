"""Writes a year of flights into a folder, file by file, as an airport's system might: nearly in order, atomically.

    python -m examples.feeder --to DIR --seconds 60

The same settings always give the same bytes, so a stopped feeder can continue. A row lags at most `disorder_hours`
behind the newest row before it: rows are sorted by their time plus a random delay between 0 and that bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from tqdm import tqdm

from examples import nycflights
from examples.schemas import FLIGHT_FILES
from runtime.durable import write_file

PLAN_FILE: Final = ".feeder.json"  #: hidden from the source, as all names that begin with a dot
MIN_GAP_S: Final = 0.005  #: between two files, so that a listing of the folder misses at most the newest
HOUR_MS: Final = 3_600_000


class FolderTaken(Exception):
    """A feeder with other settings has filled the folder; continuing would repeat or lose rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPlan:
    """The settings that determine every byte of every file."""

    files: int = 365
    disorder_hours: float = 6.0
    seed: int = 1

    def name(self, index: int) -> str:
        """The file name; names sort in reading order."""
        return f"flights-{index:06d}.csv"


def add_event_time(flights: pa.Table) -> pa.Table:
    """Adds the scheduled departure, local to New York, as the first column."""
    months = (flights["year"].to_numpy() - 1970) * 12 + flights["month"].to_numpy() - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]") + (flights["day"].to_numpy() - 1)
    hours, minutes = np.divmod(flights["sched_dep_time"].to_numpy(), 100)
    scheduled = days.astype("datetime64[m]") + (hours * 60 + minutes)
    column = pa.array(scheduled.astype("datetime64[ms]"))
    return flights.add_column(0, FLIGHT_FILES.field("scheduled"), column).cast(FLIGHT_FILES)


def disorder_rows(flights: pa.Table, plan: FeedPlan) -> pa.Table:
    """The rows in event-time order, with seeded disorder within the bound of `plan`."""
    event_ms = flights["scheduled"].cast(pa.int64()).to_numpy()
    delay_ms = np.random.default_rng(plan.seed).integers(0, int(plan.disorder_hours * HOUR_MS) + 1, len(event_ms))
    return flights.take(pa.array(np.argsort(event_ms + delay_ms, kind="stable")))


def slices(flights: pa.Table, files: int) -> Iterator[pa.Table]:
    """Cuts the table into `files` slices of nearly equal size, in order."""
    if not 0 < files <= flights.num_rows:
        raise ValueError(f"files must be between 1 and {flights.num_rows}, not {files}")
    bounds = np.linspace(0, flights.num_rows, files + 1).astype(int)
    return (flights.slice(start, stop - start) for start, stop in pairwise(bounds))


def claim_folder(folder: Path, plan: FeedPlan) -> None:
    """Writes the plan beside the files, or checks that the files were written by the same plan.

    Raises:
        FolderTaken: the folder has another plan.
    """
    folder.mkdir(parents=True, exist_ok=True)
    note, settings = folder / PLAN_FILE, asdict(plan)
    if not note.exists():
        write_file(note, json.dumps(settings).encode())
    old_settings = json.loads(note.read_text())
    if old_settings != settings:
        raise FolderTaken(
            f"{folder} was filled with {old_settings}, not {settings}: use the same settings or another folder"
        )


def feed(flights: pa.Table, folder: Path, plan: FeedPlan, seconds: float) -> Generator[int, None, None]:
    """Writes the missing files, evenly over `seconds`. Yields the number of rows of each file, old and new."""
    claim_folder(folder, plan)
    parts = list(slices(disorder_rows(add_event_time(flights), plan), plan.files))
    waiting = {index for index in range(plan.files) if not (folder / plan.name(index)).exists()}
    gap_s = max(seconds / max(len(waiting), 1), MIN_GAP_S)
    due = time.monotonic()
    for index, part in enumerate(parts):
        if index in waiting:
            due = max(due + gap_s, time.monotonic() + MIN_GAP_S)
            time.sleep(due - time.monotonic())
            write_file(folder / plan.name(index), _csv(part))
        yield part.num_rows


def _csv(rows: pa.Table) -> bytes:
    """The rows as CSV: times as `2013-01-01 05:15:00.000`, null as an empty field."""
    sink = pa.BufferOutputStream()
    text = pc.strftime(rows["scheduled"], format="%Y-%m-%d %H:%M:%S")
    plain = pacsv.WriteOptions(include_header=False, quoting_style="none")
    pacsv.write_csv(rows.set_column(0, "scheduled", text), sink, plain)
    return ",".join(rows.schema.names).encode() + b"\n" + bytes(sink.getvalue())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.feeder", description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for all missing files")
    arguments = parser.parse_args(argv)
    flights = nycflights.read_flights()
    rows = feed(flights, arguments.to, FeedPlan(), arguments.seconds)
    try:
        with tqdm(total=flights.num_rows, desc="feeding", unit=" rows", disable=None) as bar:
            for count in rows:
                bar.update(count)
    except (FolderTaken, ValueError) as refusal:
        sys.stderr.write(f"feeder: {refusal}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("feeder: stopped; run the same command to continue\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
