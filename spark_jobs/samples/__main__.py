"""Prepares an example pipeline, writes its input, or checks its output; `python -m stack examples` starts it.

    python -m spark_jobs.samples prepare enrichment
    python -m spark_jobs.samples feed clickstream --seconds 30
    python -m spark_jobs.samples check clickstream

The folder of an example is `examples/NAME` in the first data root. Its database is that of WEIR_SECRET_EXAMPLES_URL.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from tqdm import tqdm

from spark_jobs.samples import change_capture, clickstream, enrichment, order_payments
from spark_jobs.samples.check import differences
from spark_jobs.samples.folders import sample_folder

MAX_SHOWN: Final = 20
DATABASE_VARIABLE: Final = "WEIR_SECRET_EXAMPLES_URL"


class Sample(NamedTuple):
    """The data of an example. `database`: address of the Postgres of the examples."""

    steps: int
    prepare: Callable[[Path, str], None]
    write_step: Callable[[Path, str, int], None]
    tables: Callable[[Path, str], Mapping[str, pa.Table]]


SAMPLES: Final = {
    module.__name__.rsplit(".", 1)[-1]: Sample(module.STEPS, module.prepare, module.write_step, module.tables)
    for module in (change_capture, clickstream, enrichment, order_payments)
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m spark_jobs.samples", description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["prepare", "feed", "check"])
    parser.add_argument("example", choices=sorted(SAMPLES))
    parser.add_argument("--seconds", type=float, default=30.0, help="time over which the input is written")
    arguments = parser.parse_args(argv)
    database = os.environ.get(DATABASE_VARIABLE, "")
    folder = Path(sample_folder(arguments.example))
    if arguments.action == "check":
        return _check(arguments.example, folder, database)
    sample = SAMPLES[arguments.example]
    sample.prepare(folder, database)
    if arguments.action == "feed":
        for step in tqdm(range(sample.steps), desc="writing", unit=" steps", disable=None):
            if step:
                time.sleep(arguments.seconds / sample.steps)
            sample.write_step(folder, database, step)
    return 0


def _check(example: str, folder: Path, database: str) -> int:
    tables = SAMPLES[example].tables(folder, database)
    for name, table in tables.items():
        print(f"{table.num_rows:>10} rows of {name}")  # noqa: T201
    found = differences(example, tables)
    for output, problem, row in found[:MAX_SHOWN]:
        print(f"{problem:>10} in {output}: {row}")  # noqa: T201
    print(f"{len(found)} rows differ" if found else "the output is exact")  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
