"""Flink SQL on its JVM, in the mini cluster of the package; Python only submits the job.

The source is `NumberSequenceSource`, eight times as fast here as the `datagen` connector; the sink is `blackhole`.
State is on the heap (the fastest backend), objects are reused, and aggregates without windows use mini-batches and two
phases, as Flink's tuning guide advises.
"""

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.table import EnvironmentSettings, Schema, StreamTableEnvironment, TableResult

from benchmarks import protocol
from benchmarks.datasets import DATASETS
from benchmarks.protocol import Task
from benchmarks.workload import key_sql

SETTINGS = {
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "state.backend.type": "hashmap",
    "execution.checkpointing.storage": "filesystem",
    "pipeline.object-reuse": "true",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
    "table.local-time-zone": "UTC",
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.memory.network.min": "256mb",
    "taskmanager.memory.network.max": "256mb",
}
#: Each of the two readers gets a half of the numbers. Numbers of the first half become even ids, of the second half odd
#: ids, so that both readers progress in event time together.
ID = "(case when f0 < {half} then f0 * 2 else (f0 - {half}) * 2 + 1 end)"
KINDS = {
    "window": (
        "`key` bigint, window_start timestamp(3), `count` bigint, `sum` bigint",
        """
        select `key`, window_start, count(*), sum(id)
        from table(tumble(table numbers, descriptor(`time`), interval '1' second))
        group by `key`, window_start, window_end
        """,
    ),
    "running": (
        "`key` bigint, `count` bigint, `sum` bigint",
        "select `key`, count(*), sum(id) from numbers group by `key`",
    ),
}
DISCARD = "'connector' = 'blackhole'"
FILES = "'connector' = 'filesystem', 'path' = 'file://{path}', 'format' = '{format}'"
TYPES = {"timestamp": "timestamp(6)"}  #: of data sets, where they differ
#: Updates need a changelog format.
FORMATS = {"window": "csv", "running": "debezium-json"}
WINDOWS = {"key": "bigint", "window_start": "timestamp", "count": "bigint", "sum": "bigint"}
COLUMNS = {
    "window": WINDOWS,
    "running": {"after": "struct(key bigint, count bigint, sum bigint)", "op": "varchar"},
}


def environment(task: Task, phase: str) -> tuple[StreamExecutionEnvironment, StreamTableEnvironment]:
    settings = Configuration()
    options = {
        **SETTINGS,
        "parallelism.default": str(task.parallelism),
        "execution.checkpointing.interval": f"{task.interval_ms} ms",
        "execution.checkpointing.dir": f"file://{task.checkpoints(phase)}",
    }
    for name, value in options.items():
        settings.set_string(name, value)
    streams = StreamExecutionEnvironment.get_execution_environment(settings)
    table_settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings).build()
    return streams, StreamTableEnvironment.create(streams, table_settings)


def numbers(
    task: Task, streams: StreamExecutionEnvironment, tables: StreamTableEnvironment, phase: str, rows: int
) -> None:
    """Creates the view `numbers` with id, key and time."""
    row_id = ID.format(half=(rows + 1) // 2)
    source = NumberSequenceSource(0, rows - 1)
    sequence = streams.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    schema = (
        Schema.new_builder()
        .column("f0", "bigint")
        .column_by_expression("id", row_id)
        .column_by_expression("key", key_sql(task).replace("id", row_id))
        .column_by_expression("time", f"to_timestamp_ltz({row_id} / 1000, 3)")
        .watermark("time", "`time` - interval '0.001' second")
    )
    tables.create_temporary_view("numbers", sequence, schema.build())


def files(task: Task, tables: StreamTableEnvironment, phase: str) -> None:
    """Creates the table `numbers` over files. Files are read in any order, so the watermark is a day behind."""
    connector = FILES.format(path=task.input(phase), format=task.files)
    columns = "id bigint, `key` bigint, `time` timestamp(3)"
    watermark = "watermark for `time` as `time` - interval '1' day"
    tables.execute_sql(
        f"create table numbers ({columns}, {watermark}) with ({connector}, 'json.timestamp-format.standard'='ISO-8601')"
    )


def read(task: Task, phase: str) -> float:
    """Reads the first table of a data set with all its columns and discards it. Returns the seconds of the job."""
    assert task.dataset is not None, "the task has a data set"
    _, tables = environment(task, phase)
    name, table = next(iter(DATASETS[task.dataset].items()))
    columns = ", ".join(f"`{column}` {TYPES.get(kind, kind)}" for column, (kind, _) in table.columns.items())
    connector = FILES.format(path=task.input(phase) / name, format=task.files)
    iso = "'json.timestamp-format.standard'='ISO-8601'"
    tables.execute_sql(f"create table `input` ({columns}) with ({connector}, {iso})")
    tables.execute_sql(f"create table `out` ({columns}) with ({DISCARD})")
    return seconds(tables.execute_sql("insert into `out` select * from `input`"))


def seconds(submitted: TableResult) -> float:
    """Waits for the end of a job. Returns its seconds as the cluster reports them."""
    job = submitted.get_job_client()
    return float(job.get_job_execution_result().result().get_net_runtime()) / 1000


def run(task: Task, phase: str, rows: int, connector: str) -> float:
    """Runs the job to its end. Returns the seconds that the cluster reports."""
    if task.dataset is not None:
        return read(task, phase)
    streams, tables = environment(task, phase)
    if task.files is None:
        numbers(task, streams, tables, phase, rows)
    else:
        files(task, tables, phase)
    columns, query = KINDS[task.kind]
    tables.execute_sql(f"create table `out` ({columns}) with ({connector})")
    return seconds(tables.execute_sql(f"insert into `out` {query}"))


def main() -> None:
    task = protocol.read_task()
    written = FORMATS.get(task.kind, "csv")
    run(task, "check", task.check_rows, FILES.format(path=task.output, format=written))
    compared, columns = "csv" if written == "csv" else "changes", COLUMNS.get(task.kind, {})
    protocol.send_checked(rows=task.check_rows, format=compared, columns=columns, pattern="**/part-*")
    protocol.send_started()
    into = DISCARD if task.files is None else FILES.format(path=task.measured_output, format=written)
    protocol.send_measured(rows=task.rows, seconds=run(task, "measure", task.rows, into))


if __name__ == "__main__":
    main()
