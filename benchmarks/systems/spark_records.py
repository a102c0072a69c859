"""The consumers of ShuffleBench in Structured Streaming: `flatMapGroupsWithState`, in Scala.

The function of a consumer in Python (`applyInPandasWithState`) takes milliseconds per consumer and batch, so the
program is compiled with the Scala compiler that Spark contains.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame

from benchmarks import scala
from benchmarks.datasets.records import NUMBER_DIGITS
from benchmarks.workloads.records import RECORDS_PER_EVENT

if TYPE_CHECKING:
    from benchmarks.systems.spark_inputs import SparkInputs

_PROGRAM: Final = Path(__file__).with_name("Consumers.scala")


def compile_program(folder: Path) -> str:
    """Compiles the program into `folder`, unless it is there, for the class path of Spark."""
    scala.compile_program(_PROGRAM, [scala.JARS / "*"], folder)
    return str(folder)


def read(inputs: "SparkInputs") -> DataFrame:
    return inputs.stream("records", "event_time")


def events(inputs: "SparkInputs") -> DataFrame:
    records = read(inputs).selectExpr("consumer", "unix_micros(event_time) as event_time", "record")
    spark = records.sparkSession
    java = spark._jvm
    assert java is not None, "the session has a JVM"
    return DataFrame(java.benchmarks.Consumers.events(records._jdf, NUMBER_DIGITS, RECORDS_PER_EVENT), spark)
