"""DuckDB: the answer of a batch over the files of a data set, with two threads. It is an upper bound, not a peer."""

import time

import duckdb

from benchmarks import protocol
from benchmarks.datasets import DATASETS
from benchmarks.protocol import Task
from benchmarks.sql import text_literal
from benchmarks.workloads import WORKLOADS

_SCANS = {"parquet": "read_parquet({files})", "json": "read_json({files}, format='newline_delimited', columns={types})"}
_TYPES = {"string": "varchar"}


def run(task: Task, phase: str, rows: int) -> int:
    """Computes the answer into files, or reads the first table with all columns. Returns the number of input rows."""
    assert task.dataset is not None, "the task has a data set"
    workload = WORKLOADS[task.workload]
    with duckdb.connect(config={"threads": task.parallelism}) as database:
        for name, table in DATASETS[task.dataset].items():
            types = ", ".join(f"'{column}': '{_TYPES.get(kind, kind)}'" for column, (kind, _) in table.columns.items())
            files = text_literal(task.input(phase) / name / "*")
            scan = _SCANS[str(task.files)].format(files=files, types=f"{{{types}}}")
            database.execute(f"create view {name} as from {scan}")
        if workload.expected:
            output = task.output_of(phase)
            output.mkdir(parents=True)
            answer = (workload.batch or workload.expected).format(rows=rows)
            if task.partition_by:
                into = f"{text_literal(output)} (format parquet, partition_by ({', '.join(task.partition_by)}))"
            else:
                into = f"{text_literal(output / 'answer.parquet')} (format parquet)"
            database.execute(f"copy ({answer}) to {into}")
            return rows
        name, table = next(iter(DATASETS[task.dataset].items()))
        largest = ", ".join(f"max({column})" for column in table.columns)
        row = database.execute(f"select count(*), {largest} from {name}").fetchone()
        assert row is not None, "an aggregate has a row"
        return int(row[0])


def main() -> None:
    task = protocol.read_task()
    run(task, "check", task.check_rows)
    protocol.send_checked(rows=task.check_rows, format="parquet", columns={}, pattern="**/*.parquet")
    protocol.send_started()
    began = time.monotonic()
    counted = run(task, "measure", task.rows)
    details = {} if WORKLOADS[task.workload].expected else {"rows_out": counted}
    protocol.send_measured(rows=task.rows, seconds=time.monotonic() - began, **details)


if __name__ == "__main__":
    main()
