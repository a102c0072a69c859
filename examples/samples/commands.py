"""The commands of an example: prepare its folders and tables, write its input, check its output.

The folder of an example is `examples/NAME` in the first data root.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from tqdm import tqdm

from examples.database import provide_database
from examples.environment import Environment
from examples.samples import change_capture, clickstream, enrichment, order_payments
from examples.samples.check import differences
from examples.samples.folders import sample_folder

MAX_SHOWN: Final = 20


class Sample(NamedTuple):
    """The data of an example. `database`: address of the Postgres of the examples."""

    steps: int
    prepare: Callable[[Path, str], None]
    write_step: Callable[[Path, str, int], None]
    tables: Callable[[Path, str], Mapping[str, pa.Table]]
    has_database: bool


SAMPLES: Final = {
    module.__name__.rsplit(".", 1)[-1]: Sample(
        module.STEPS, module.prepare, module.write_step, module.tables, module in (change_capture, enrichment)
    )
    for module in (change_capture, clickstream, enrichment, order_payments)
}


def prepare(environment: Environment, example: str) -> int:
    SAMPLES[example].prepare(Path(sample_folder(example)), _database(environment, example))
    return 0


def feed(environment: Environment, example: str, seconds: float) -> int:
    sample, folder, database = SAMPLES[example], Path(sample_folder(example)), _database(environment, example)
    sample.prepare(folder, database)
    for step in tqdm(range(sample.steps), desc="writing", unit=" steps", disable=None):
        if step:
            time.sleep(seconds / sample.steps)
        sample.write_step(folder, database, step)
    return 0


def check(environment: Environment, example: str) -> int:
    """Compares the output with the answer of DuckDB. Returns 1 if rows differ."""
    tables = SAMPLES[example].tables(Path(sample_folder(example)), _database(environment, example))
    for name, table in tables.items():
        print(f"{table.num_rows:>10} rows of {name}")
    rows = differences(example, tables)
    for output, problem, row in rows[:MAX_SHOWN]:
        print(f"{problem:>10} in {output}: {row}")
    print(f"{len(rows)} rows differ" if rows else "the output is exact")
    return 1 if rows else 0


def _database(environment: Environment, example: str) -> str:
    return provide_database(environment) if SAMPLES[example].has_database else ""
