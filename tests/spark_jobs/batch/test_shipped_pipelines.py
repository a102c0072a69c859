"""All shipped pipelines, bounded: the same output in STREAMING, on threads, and in BATCH, on two executors."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples import nycflights
from examples.feeder import FeedPlan, feed
from examples.pipelines.spark_words import LINES
from examples.samples.check import differences
from examples.samples.commands import SAMPLES
from runtime.connectors.sinks.epoch_stage import EpochStage
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.pipelines import PipelineContext, pipeline, registry
from runtime.errors import JobRejected
from runtime.launch.local import run_local
from spark_jobs.batch.run import plan_batch, run_batch
from spark_jobs.sinks.delivery import Delivery
from tests.examples.inputs import OUTPUTS, drop_example_tables, example_params, write_flight_inputs, write_input
from tests.postgres import address_without_password
from tests.spark_jobs.batch.flows import rows_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

FLIGHTS = 9_000  #: the first eleven days
FILES, LINES_PER_FILE = 3, 200
HOURS_S = 10_800  #: longer than any row of the examples is late

Rows = Mapping[str, list[str]]  #: by output, the rows in any order


class Case(NamedTuple):
    """A pipeline in a folder of its own for each mode.

    Args:
        write_input: gets folder and database, writes the input, and returns the parameters.
        output: gets folder and database, returns what the committed rows come to.
    """

    write_input: Callable[[Path, str], dict[str, Any]]
    output: Callable[[Path, str], Rows]


# ---------------------------------------------------------------- examples with sample input


def _sample(name: str, **params: Any) -> Case:
    sample = SAMPLES[name]

    def write(folder: Path, database: str) -> dict[str, Any]:
        sample.prepare(folder, database)
        for step in range(sample.steps):
            sample.write_step(folder, database, step)
        return {**example_params(name, folder, database), **params}

    def output(folder: Path, database: str) -> Rows:
        tables = sample.tables(folder, database)
        assert differences(name, tables) == [], "DuckDB has another answer"
        return {each: sorted(map(repr, tables[each].to_pylist())) for each in OUTPUTS[name]}

    return Case(write, output)


# ---------------------------------------------------------------- other pipelines


def _flights(folder: Path, database: str) -> dict[str, Any]:
    flights = nycflights.read_flights()
    (folder / "flights").mkdir()
    for _ in feed(flights.slice(0, FLIGHTS), folder / "flights", FeedPlan(files=11), 0):
        pass
    write_flight_inputs(folder / "inputs", flights)  # for STREAMING; in BATCH Spark reads the tables itself
    return {"flights_dir": str(folder / "flights"), "output_dir": str(folder / "out")}


def _lines(folder: Path, database: str) -> dict[str, Any]:
    (folder / "lines").mkdir()
    for number in range(FILES):
        lines = [f"the line {n} of file {number} the end" for n in range(LINES_PER_FILE)]
        (folder / "lines" / f"{number}.txt").write_text("\n".join(lines))
    return {"lines_dir": str(folder / "lines"), "output_dir": str(folder / "out")}


def _lines_of_spark(folder: Path, database: str) -> dict[str, Any]:
    params = _lines(folder, database)
    lines = [line for path in sorted((folder / "lines").iterdir()) for line in path.read_text().splitlines()]
    write_input(folder / "inputs" / "lines", pa.table({"value": lines}, LINES))  # for STREAMING
    return params


def _lines_and_table(folder: Path, database: str) -> dict[str, Any]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE words (word text, count bigint)")
    return _lines(folder, database) | {"database_url": address_without_password(database)}


def _table_rows(folder: Path, database: str) -> Rows:
    return {"out": rows_in(folder / "out")}


def _last_counts(folder: Path, database: str) -> Rows:
    """The last count of each word: counts only rise."""
    counts: dict[str, int] = {}
    for row in _parquet(folder):
        counts[row["word"]] = max(row["count"], counts.get(row["word"], 0))
    return {"out": sorted(map(repr, counts.items()))}


def _summed_counts(folder: Path, database: str) -> Rows:
    """The counts of all epochs, in both targets."""
    with psycopg.connect(database) as connection:
        table = connection.execute("SELECT word, count FROM words").fetchall()
    targets = {"parquet": [(row["word"], row["count"]) for row in _parquet(folder)], "postgres": table}
    totals = {name: Counter[str]() for name in targets}
    for name, rows in targets.items():
        for word, count in rows:
            totals[name][word] += count
    return {name: sorted(map(repr, total.items())) for name, total in totals.items()}


def _parquet(folder: Path) -> Iterator[dict[str, Any]]:
    for path in (folder / "out").glob("*.parquet"):
        yield from pq.read_table(path).to_pylist()


CASES: Mapping[str, Case] = {
    "change_capture": _sample("change_capture"),
    "clickstream": _sample("clickstream", max_disorder_s=HOURS_S),
    "enrichment": _sample("enrichment"),
    "flights": Case(_flights, _table_rows),
    "order_payments": _sample("order_payments", max_disorder_s=HOURS_S),
    "spark_wordcount": Case(_lines_of_spark, _last_counts),
    "word_table": Case(_lines_and_table, _summed_counts),
    "wordcount": Case(_lines, _last_counts),
}
EMPTY = ("late_clicks", "late_views", "late_orders", "late_payments")  #: outputs without rows: BATCH refuses late rows
#: By pipeline that BATCH cannot run: parameters, and the expected code and operator.
REFUSED: Mapping[str, tuple[dict[str, Any], str, str]] = {
    "components": ({"edges_dir": "/in", "output_dir": "/out"}, "iteration-in-batch", "loop"),
}


@pytest.fixture
def database(database_url: str) -> Iterator[str]:
    yield database_url
    _drop_tables(database_url)


def _drop_tables(database: str) -> None:
    drop_example_tables(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS words, weir_epochs")


def _flow(name: str, folder: Path, params: dict[str, Any]) -> Dataflow:
    context = PipelineContext(str(folder / "inputs"), stream_root=str(folder / "streams"))
    return pipeline(name).dataflow(params | {"bounded": True}, context)


def _stream(flow: Dataflow, spark: SparkSession, storage: Path) -> None:
    """A run in STREAMING, with the standing stages of its sinks: it ends once they have delivered every epoch."""
    stopping = threading.Event()
    sinks = [sink for sink in flow.sinks.values() if isinstance(sink, EpochStage)]
    with ThreadPoolExecutor() as stages:
        deliveries = [stages.submit(Delivery(sink, spark, lambda _: None).run, stopping) for sink in sinks]
        try:
            run_local(flow, parallelism=2, storage=str(storage))
        finally:
            stopping.set()
    for delivery in deliveries:
        delivery.result()


@pytest.mark.parametrize("name", CASES)
def test_a_shipped_pipeline_commits_the_same_rows_in_both_modes(
    name: str, cluster: SparkSession, database: str, tmp_path: Path
) -> None:
    """S0-01, S0-06, S0-10."""
    outputs: dict[str, Rows] = {}
    for mode in ("streaming", "batch"):
        folder = tmp_path / mode
        folder.mkdir()
        flow = _flow(name, folder, CASES[name].write_input(folder, database))
        if mode == "streaming":
            _stream(flow, cluster, folder / "state")
        else:
            run_batch(flow, parallelism=2, spark=cluster, storage=str(folder / "end"))
        outputs[mode] = CASES[name].output(folder, database)
        _drop_tables(database)
    assert outputs["batch"] == outputs["streaming"]
    for output, rows in outputs["batch"].items():
        assert rows == [] if output in EMPTY else len(rows) > 10


@pytest.mark.parametrize(("name", "operator"), [("clickstream", "views"), ("order_payments", "paid")])
def test_late_rows_of_an_example_are_refused(name: str, operator: str, cluster: SparkSession, tmp_path: Path) -> None:
    """The sample input has some rows that STREAMING finds too late."""
    flow = _flow(name, tmp_path, _sample(name).write_input(tmp_path, ""))
    with pytest.raises(JobRejected) as error:
        run_batch(flow, parallelism=2, spark=cluster, storage=str(tmp_path / "end"))
    assert (error.value.code, error.value.field) == ("late-rows-in-batch", operator)


@pytest.mark.parametrize("name", REFUSED)
def test_a_shipped_pipeline_that_batch_cannot_run_is_refused_by_operator(name: str, tmp_path: Path) -> None:
    params, code, operator = REFUSED[name]
    with pytest.raises(JobRejected) as error:
        plan_batch(_flow(name, tmp_path, params).compile(2))
    assert (error.value.code, error.value.field) == (code, operator)


def test_every_shipped_pipeline_can_be_bounded_and_is_tried() -> None:
    pipelines = registry().pipelines
    assert set(CASES) | set(REFUSED) == set(pipelines)
    assert all("bounded" in offered.params.__struct_fields__ for offered in pipelines.values())
