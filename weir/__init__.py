"""The names that the author of a job imports, and `__version__`.

    import weir

    flow = weir.Dataflow("wordcount")
    lines = flow.source("lines", weir.DirectorySource("/in", weir.LineFormat()))
    counts = lines.key_by("line").aggregate("counts", {"count": weir.Count()})
    counts.sink("out", weir.ParquetSink("/out"))

`weir.spi` has the interfaces of sources, sinks and formats, for authors of connectors.

`import weir` loads no other module. A name imports its module at its first use (PEP 562), so Arrow, Spark and the
network code are loaded only by the names that need them. Every name is defined in one place and is public here only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors: the names of `_HOMES`
    __version__: str
    from runtime.connectors.formats.arrow import ArrowFormat as ArrowFormat
    from runtime.connectors.formats.avro import AvroFormat as AvroFormat
    from runtime.connectors.formats.csv import CsvFormat as CsvFormat
    from runtime.connectors.formats.json_lines import JsonLinesFormat as JsonLinesFormat
    from runtime.connectors.formats.lines import LineFormat as LineFormat
    from runtime.connectors.formats.parquet import ParquetFormat as ParquetFormat
    from runtime.connectors.kafka.avro import KafkaAvro as KafkaAvro
    from runtime.connectors.kafka.formats import KafkaBytes as KafkaBytes
    from runtime.connectors.kafka.formats import KafkaJson as KafkaJson
    from runtime.connectors.kafka.formats import KafkaText as KafkaText
    from runtime.connectors.kafka.protobuf import KafkaProtobuf as KafkaProtobuf
    from runtime.connectors.kafka.registry import SchemaRegistry as SchemaRegistry
    from runtime.connectors.kafka.sink import KafkaSink as KafkaSink
    from runtime.connectors.kafka.source import KafkaSource as KafkaSource
    from runtime.connectors.postgres.changes import PostgresChanges as PostgresChanges
    from runtime.connectors.postgres.sink import PostgresSink as PostgresSink
    from runtime.connectors.postgres.source import PostgresSource as PostgresSource
    from runtime.connectors.set_aside import SetAside as SetAside
    from runtime.connectors.set_aside import dead_letters as dead_letters
    from runtime.connectors.sinks.avro import AvroSink as AvroSink
    from runtime.connectors.sinks.collect import CollectSink as CollectSink
    from runtime.connectors.sinks.csv import CsvSink as CsvSink
    from runtime.connectors.sinks.discard import DiscardSink as DiscardSink
    from runtime.connectors.sinks.epoch_stage import EpochStage as EpochStage
    from runtime.connectors.sinks.json_lines import JsonLinesSink as JsonLinesSink
    from runtime.connectors.sinks.parquet import ParquetSink as ParquetSink
    from runtime.connectors.sinks.print import PrintSink as PrintSink
    from runtime.connectors.sinks.webhook import Webhook as Webhook
    from runtime.connectors.sinks.write_ahead import WriteAheadSink as WriteAheadSink
    from runtime.connectors.sources.directory import DirectorySource as DirectorySource
    from runtime.connectors.sources.hybrid import then as then
    from runtime.connectors.sources.parquet import ParquetSource as ParquetSource
    from runtime.connectors.sources.sequence import SequenceSource as SequenceSource
    from runtime.connectors.tables.delta import DeltaSink as DeltaSink
    from runtime.connectors.tables.iceberg import IcebergSink as IcebergSink
    from runtime.core.job.guarantee import CheckpointMode as CheckpointMode
    from runtime.core.job.restart_strategy import ExponentialDelay as ExponentialDelay
    from runtime.core.job.restart_strategy import FixedDelay as FixedDelay
    from runtime.core.job.restart_strategy import NoRestart as NoRestart
    from runtime.core.job.settings import CoordinatorSettings as CoordinatorSettings
    from runtime.dataflow.builder import Dataflow as Dataflow
    from runtime.dataflow.connected_streams import ConnectedKeyedStreams as ConnectedKeyedStreams
    from runtime.dataflow.connected_streams import ConnectedStreams as ConnectedStreams
    from runtime.dataflow.joined_streams import IntervalJoinedStreams as IntervalJoinedStreams
    from runtime.dataflow.joined_streams import JoinedStreams as JoinedStreams
    from runtime.dataflow.keyed_stream import KeyedStream as KeyedStream
    from runtime.dataflow.pipelines import Pipeline as Pipeline
    from runtime.dataflow.pipelines import PipelineContext as PipelineContext
    from runtime.dataflow.stream import IterativeStream as IterativeStream
    from runtime.dataflow.stream import Stream as Stream
    from runtime.errors import CorruptState as CorruptState
    from runtime.errors import DataRejected as DataRejected
    from runtime.errors import EnvironmentFailure as EnvironmentFailure
    from runtime.errors import JobRejected as JobRejected
    from runtime.errors import TargetAway as TargetAway
    from runtime.errors import WeirError as WeirError
    from runtime.io.memory.run_store import MemoryRunStore as MemoryRunStore
    from runtime.launch.local import run_local as run_local
    from runtime.operators.aggregates import Count as Count
    from runtime.operators.aggregates import CountIf as CountIf
    from runtime.operators.aggregates import Max as Max
    from runtime.operators.aggregates import Mean as Mean
    from runtime.operators.aggregates import Min as Min
    from runtime.operators.aggregates import Sum as Sum
    from runtime.operators.functions.co_process import CoProcessFunction as CoProcessFunction
    from runtime.operators.functions.co_process import KeyedCoProcessFunction as KeyedCoProcessFunction
    from runtime.operators.functions.function import BroadcastState as BroadcastState
    from runtime.operators.functions.function import RowCollector as RowCollector
    from runtime.operators.functions.keyed_process import KeyedBroadcastProcessFunction as KeyedBroadcastProcessFunction
    from runtime.operators.functions.keyed_process import KeyedProcessFunction as KeyedProcessFunction
    from runtime.operators.functions.keyed_process import ProcessContext as ProcessContext
    from runtime.operators.functions.keyed_state import KeyedListState as KeyedListState
    from runtime.operators.functions.keyed_state import MapState as MapState
    from runtime.operators.functions.process import BroadcastProcessFunction as BroadcastProcessFunction
    from runtime.operators.functions.process import ProcessFunction as ProcessFunction
    from runtime.operators.functions.process import SubtaskContext as SubtaskContext
    from runtime.operators.functions.set_aside import dead_letter_rows as dead_letter_rows
    from runtime.operators.functions.value_state import AggregatingState as AggregatingState
    from runtime.operators.functions.value_state import ReducingState as ReducingState
    from runtime.operators.functions.value_state import ValueState as ValueState
    from runtime.operators.output_tag import OutputTag as OutputTag
    from runtime.ports.operators import ListState as ListState
    from spark_jobs.batch.run import BatchResult as BatchResult
    from spark_jobs.batch.run import run_batch as run_batch
    from spark_jobs.savepoints.writer import SavepointWriter as SavepointWriter
    from spark_jobs.savepoints.writer import WrittenSavepoint as WrittenSavepoint
    from spark_jobs.session import SparkSettings as SparkSettings
    from spark_jobs.session import spark_session as spark_session
    from spark_jobs.sinks.parquet_table import ParquetTable as ParquetTable
    from spark_jobs.sinks.postgres_table import PostgresTable as PostgresTable
    from spark_jobs.sinks.targets import DeliveredEpoch as DeliveredEpoch
    from spark_jobs.sources.stream import from_spark_stream as from_spark_stream
    from spark_jobs.sources.table import from_spark as from_spark
    from weir import spi as spi

_HOMES = {
    # A job and the pipeline that offers it
    "Dataflow": "runtime.dataflow.builder",
    "Stream": "runtime.dataflow.stream",
    "KeyedStream": "runtime.dataflow.keyed_stream",
    "IterativeStream": "runtime.dataflow.stream",
    "Pipeline": "runtime.dataflow.pipelines",
    "PipelineContext": "runtime.dataflow.pipelines",
    # Aggregates of windows and running aggregates
    "Count": "runtime.operators.aggregates",
    "CountIf": "runtime.operators.aggregates",
    "Sum": "runtime.operators.aggregates",
    "Mean": "runtime.operators.aggregates",
    "Min": "runtime.operators.aggregates",
    "Max": "runtime.operators.aggregates",
    # Functions with state and timers
    "ProcessFunction": "runtime.operators.functions.process",
    "BroadcastProcessFunction": "runtime.operators.functions.process",
    "SubtaskContext": "runtime.operators.functions.process",
    "KeyedProcessFunction": "runtime.operators.functions.keyed_process",
    "ConnectedKeyedStreams": "runtime.dataflow.connected_streams",
    "ConnectedStreams": "runtime.dataflow.connected_streams",
    "IntervalJoinedStreams": "runtime.dataflow.joined_streams",
    "JoinedStreams": "runtime.dataflow.joined_streams",
    "CoProcessFunction": "runtime.operators.functions.co_process",
    "KeyedCoProcessFunction": "runtime.operators.functions.co_process",
    "KeyedBroadcastProcessFunction": "runtime.operators.functions.keyed_process",
    "ProcessContext": "runtime.operators.functions.keyed_process",
    "RowCollector": "runtime.operators.functions.function",
    "OutputTag": "runtime.operators.output_tag",
    "SetAside": "runtime.connectors.set_aside",
    "dead_letters": "runtime.connectors.set_aside",
    "dead_letter_rows": "runtime.operators.functions.set_aside",
    "BroadcastState": "runtime.operators.functions.function",
    "ListState": "runtime.ports.operators",
    "ValueState": "runtime.operators.functions.value_state",
    "ReducingState": "runtime.operators.functions.value_state",
    "AggregatingState": "runtime.operators.functions.value_state",
    "KeyedListState": "runtime.operators.functions.keyed_state",
    "MapState": "runtime.operators.functions.keyed_state",
    # Sources and formats
    "DirectorySource": "runtime.connectors.sources.directory",
    "then": "runtime.connectors.sources.hybrid",
    "ParquetSource": "runtime.connectors.sources.parquet",
    "PostgresChanges": "runtime.connectors.postgres.changes",
    "SequenceSource": "runtime.connectors.sources.sequence",
    "KafkaSource": "runtime.connectors.kafka.source",
    "PostgresSource": "runtime.connectors.postgres.source",
    "from_spark": "spark_jobs.sources.table",
    "from_spark_stream": "spark_jobs.sources.stream",
    "ArrowFormat": "runtime.connectors.formats.arrow",
    "AvroFormat": "runtime.connectors.formats.avro",
    "CsvFormat": "runtime.connectors.formats.csv",
    "JsonLinesFormat": "runtime.connectors.formats.json_lines",
    "LineFormat": "runtime.connectors.formats.lines",
    "ParquetFormat": "runtime.connectors.formats.parquet",
    "KafkaJson": "runtime.connectors.kafka.formats",
    "KafkaAvro": "runtime.connectors.kafka.avro",
    "KafkaProtobuf": "runtime.connectors.kafka.protobuf",
    "SchemaRegistry": "runtime.connectors.kafka.registry",
    "KafkaText": "runtime.connectors.kafka.formats",
    "KafkaBytes": "runtime.connectors.kafka.formats",
    # Sinks
    "ParquetSink": "runtime.connectors.sinks.parquet",
    "CsvSink": "runtime.connectors.sinks.csv",
    "AvroSink": "runtime.connectors.sinks.avro",
    "JsonLinesSink": "runtime.connectors.sinks.json_lines",
    "PrintSink": "runtime.connectors.sinks.print",
    "CollectSink": "runtime.connectors.sinks.collect",
    "DiscardSink": "runtime.connectors.sinks.discard",
    "EpochStage": "runtime.connectors.sinks.epoch_stage",
    "WriteAheadSink": "runtime.connectors.sinks.write_ahead",
    "Webhook": "runtime.connectors.sinks.webhook",
    "KafkaSink": "runtime.connectors.kafka.sink",
    "DeltaSink": "runtime.connectors.tables.delta",
    "IcebergSink": "runtime.connectors.tables.iceberg",
    "PostgresSink": "runtime.connectors.postgres.sink",
    "ParquetTable": "spark_jobs.sinks.parquet_table",
    "PostgresTable": "spark_jobs.sinks.postgres_table",
    "DeliveredEpoch": "spark_jobs.sinks.targets",
    # A run in this process, and as a Spark plan
    "run_local": "runtime.launch.local",
    "MemoryRunStore": "runtime.io.memory.run_store",
    "CoordinatorSettings": "runtime.core.job.settings",
    "CheckpointMode": "runtime.core.job.guarantee",
    "NoRestart": "runtime.core.job.restart_strategy",
    "FixedDelay": "runtime.core.job.restart_strategy",
    "ExponentialDelay": "runtime.core.job.restart_strategy",
    "run_batch": "spark_jobs.batch.run",
    "BatchResult": "spark_jobs.batch.run",
    "SparkSettings": "spark_jobs.session",
    "spark_session": "spark_jobs.session",
    # Savepoints made by Spark
    "SavepointWriter": "spark_jobs.savepoints.writer",
    "WrittenSavepoint": "spark_jobs.savepoints.writer",
    # Errors
    "WeirError": "runtime.errors",
    "JobRejected": "runtime.errors",
    "DataRejected": "runtime.errors",
    "EnvironmentFailure": "runtime.errors",
    "TargetAway": "runtime.errors",
    "CorruptState": "runtime.errors",
}

__all__ = [*_HOMES, "spi"]  # noqa: PLE0604 - the keys are text

if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return import_module("importlib.metadata").version(import_module("runtime.libraries").DISTRIBUTION)
        if name == "spi":
            return import_module("weir.spi")
        if name not in _HOMES:
            raise AttributeError(f"module 'weir' has no attribute {name!r}")
        attribute = globals()[name] = getattr(import_module("runtime.libraries").import_part(_HOMES[name]), name)
        return attribute

    def __dir__() -> list[str]:
        return list(__all__)
