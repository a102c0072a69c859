"""W16: the speed of reading a savepoint's state as a DataFrame in Spark: all rows, and the row of a single key.

The library's own writer makes the savepoint: the running aggregate of W9 processes rows with a key and twelve
incompressible integers. Column checksums compare the rows read with the rows written.
"""

import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.figures import Figure, MeasurementPlan, Report
from benchmarks.state.size import COLUMNS, MB, STATEFUL, VALUE_BYTES, Case, job
from spark_jobs.savepoints.writer import SavepointWriter
from spark_jobs.session import SparkSettings, spark_session
from spark_jobs.state.rows import IDENTITY_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TITLE: Final = "reading the state of a savepoint of 1 GB as a DataFrame"
TIME_BOX_S: Final = 1_500.0
STEP_S: Final = 60.0
ROUNDS: Final = 3
MEGABYTES: Final = 1_000  #: size of the state, with 100 bytes per key
CORES: Final = 2
MEMORY: Final = "3g"  #: JVM memory
STATE: Final = "aggregates"
_KEY: Final = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Seconds of a round for all rows and for the row of a key, from the call that plans the read to the last row."""

    all_s: float
    key_s: float


def steps(plan: MeasurementPlan) -> int:
    return 1 + (plan.rounds or ROUNDS)


def run(plan: MeasurementPlan, megabytes: int = MEGABYTES) -> Report:
    keys = Case(form="columns", megabytes=megabytes, checkpoints=0, interval_ms=0).keys
    settings = SparkSettings.for_batch("bench state", cores=CORES)
    settings = replace(settings, driver_memory=MEMORY, shuffle_partitions=CORES, scratch_dir=str(plan.folder / "spark"))
    with spark_session(settings) as spark:
        begun = time.monotonic()
        savepoint = write_savepoint(spark, plan.folder / "savepoint", keys, megabytes)
        written_s = time.monotonic() - begun
        plan.step(f"a savepoint of {keys:,} keys")
        made = checksums(made_rows(spark, keys))
        rounds, wrong = list[Read](), list[str]()
        for turn in range(plan.rounds or ROUNDS):
            rounds.append(read(spark, savepoint, keys, made, turn, wrong))
            plan.step(f"round {turn + 1}")
        partitions = state_frame(spark, savepoint).rdd.getNumPartitions()
    nbytes = sum(path.stat().st_size for path in Path(savepoint).rglob("*.arrow"))
    return report(rounds, keys, nbytes, written_s, partitions, wrong)


def made_rows(spark: "SparkSession", keys: int) -> "DataFrame":
    values = [f"xxhash64(id, {column}) AS v{column}" for column in range(COLUMNS)]
    return spark.range(0, keys, 1, 4 * CORES).selectExpr(f"id AS {_KEY}", *values)


def write_savepoint(spark: "SparkSession", folder: Path, keys: int, megabytes: int) -> str:
    flow = job(Case(form="columns", megabytes=megabytes, checkpoints=0, interval_ms=0))
    writer = SavepointWriter.new_savepoint(spark, flow)
    return writer.bootstrap_operator(STATEFUL, made_rows(spark, keys)).write(str(folder)).folder


def state_frame(spark: "SparkSession", savepoint: str) -> "DataFrame":
    return spark.read.format("weir-state").option("operator", STATEFUL).option("state", STATE).load(savepoint)


def value_columns(frame: "DataFrame") -> list[str]:
    """The names of the value columns, in order."""
    return [name for name in frame.columns if name not in (*IDENTITY_COLUMNS, _KEY)]


def checksums(frame: "DataFrame") -> list[int]:
    """Checksums of all rows, independent of their order: the number of rows, and each column combined by XOR."""
    folded = [f"bit_xor(`{name}`)" for name in (_KEY, *value_columns(frame))]
    (row,) = frame.selectExpr("count(*)", *folded).collect()
    return list(row)


def read(spark: "SparkSession", savepoint: str, keys: int, made: list[int], turn: int, wrong: list[str]) -> Read:
    begun = time.monotonic()
    found = checksums(state_frame(spark, savepoint))
    all_s = time.monotonic() - begun
    if found != made:
        wrong.append(f"round {turn + 1}: the rows differ from the rows that were written")
    wanted = keys * (turn + 1) // (ROUNDS + 2)
    begun = time.monotonic()
    frame = state_frame(spark, savepoint)
    rows = frame.where(f"{_KEY} = {wanted}").select(_KEY, *(f"`{name}`" for name in value_columns(frame))).collect()
    key_s = time.monotonic() - begun
    expected = made_rows(spark, keys).where(f"{_KEY} = {wanted}").collect()
    if [tuple(row) for row in rows] != [tuple(row) for row in expected]:
        wrong.append(f"round {turn + 1}: the row of key {wanted:,} differs from the row that was written")
    return Read(all_s=all_s, key_s=key_s)


def report(rounds: list[Read], keys: int, nbytes: int, written_s: float, partitions: int, wrong: list[str]) -> Report:
    all_s = statistics.median(one.all_s for one in rounds)
    key_s = statistics.median(one.key_s for one in rounds)
    figures = (
        Figure(name="all rows", value=all_s, unit="s", digits=1, runs=tuple(one.all_s for one in rounds)),
        Figure(name="all rows, of files", value=nbytes / MB / all_s, unit="MB/s", digits=0),
        Figure(name="all rows", value=keys / all_s, unit="rows/s", digits=0),
        Figure(name="one key", value=key_s, unit="s", digits=2, runs=tuple(one.key_s for one in rounds)),
    )
    lines = (
        f"{keys:,} keys of {VALUE_BYTES} bytes in {nbytes / MB:,.0f} MB of files; tasks: {partitions}, cores: {CORES}",
        f"the savepoint was written by Spark in {written_s:.0f} s",
    )
    return Report(figures=figures, lines=lines, wrong=tuple(wrong))
