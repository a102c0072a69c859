"""Commands of authors: list the installed pipelines, compile them, and run them without a console.

Parameters are a JSON object on stdin; on a terminal there are none.
"""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, ParamSpec

import click

from weir.control.command import json_option
from weir.control.output import write_rows

if TYPE_CHECKING:
    from runtime.dataflow.builder import Dataflow
    from runtime.io.memory.run_store import MemoryRunStore
    from runtime.master.job_master import JobMaster

PROGRESS_S: Final = 5.0  #: between progress lines of `weir run`

P = ParamSpec("P")


def pipeline_options(command: Callable[P, None]) -> Callable[P, None]:
    command = click.option("--parallelism", type=click.IntRange(1), default=1, show_default=True)(command)
    return click.option("--pipeline", required=True, help="Name of an installed pipeline.")(command)


@click.command()
@json_option
def pipelines(as_json: bool) -> None:
    """Lists the installed pipelines; as JSON with the schema of their parameters."""
    from spark_jobs.stages.compile import describe_pipelines

    write_rows(describe_pipelines(), ("name", "description", "error"), as_json=as_json)


@click.command()
@pipeline_options
@click.option("--max-parallelism", type=click.IntRange(1), help="Number of key groups.")
@click.option("--mode", type=click.Choice(["streaming", "batch"]), default="streaming", show_default=True)
def compile(pipeline: str, parallelism: int, max_parallelism: int | None, mode: str) -> None:  # noqa: A001
    """Checks parameters, and writes the graph of the job as JSON."""
    groups = () if max_parallelism is None else ("--max-parallelism", str(max_parallelism))
    _run_stage("compile", "--pipeline", pipeline, "--parallelism", str(parallelism), "--mode", mode, *groups)


@click.command()
@pipeline_options
@click.option("--storage", required=True, help="Folder for the manifest of the run's end, one per job.")
def batch(pipeline: str, parallelism: int, storage: str) -> None:
    """Runs a bounded job as a Spark plan, and writes the number of rows by sink as JSON."""
    _run_stage("batch", "--pipeline", pipeline, "--parallelism", str(parallelism), "--storage", storage)


@click.command()
@pipeline_options
@click.option("--storage", help="Folder or s3://bucket/prefix for checkpoints [a temporary folder].")
@json_option
def run(pipeline: str, parallelism: int, storage: str | None, as_json: bool) -> None:
    """Runs a job to its end in this process, without Spark, and shows the rows of each step.

    A job that reads without end runs until Ctrl-C, which stops it with a savepoint: all rows that were read by then
    are committed. A second Ctrl-C ends it at once. The progress is on stderr.
    """
    from runtime.access.data_roots import DataRoots
    from runtime.clock import SystemClock
    from runtime.core.job.ids import Token
    from runtime.dataflow.pipelines import PipelineContext
    from runtime.dataflow.pipelines import pipeline as find_pipeline
    from runtime.io import logs
    from runtime.io.memory.run_store import MemoryRunStore
    from runtime.launch.local import local_master, run_to_end
    from spark_jobs.stages.standing import parse_params

    logs.configure()
    with tempfile.TemporaryDirectory() as folder:
        context = PipelineContext("", DataRoots.of_environment(os.environ))
        flow = find_pipeline(pipeline).dataflow(parse_params(_stdin()), context)
        records = MemoryRunStore(token=Token(SystemClock().now_ms()))
        master = local_master(flow.compile(parallelism), storage or folder, records)
        with _progress(records, flow), _stop_at_interrupt(records, master):
            run_to_end(master, records)
    steps = records.live["operators"].items()
    rows = [{"step": uid, "rows_in": each["records_in"], "rows_out": each["records_out"]} for uid, each in steps]
    write_rows(rows, ("step", "rows_in", "rows_out"), as_json=as_json)


@contextmanager
def _progress(records: "MemoryRunStore", flow: "Dataflow") -> Iterator[None]:
    """Prints the rows that sources have read and sinks have received, and the number of checkpoints, on stderr."""
    ended = threading.Event()

    def print_lines() -> None:
        while not ended.wait(PROGRESS_S):
            steps, checkpoints = records.live.get("operators", {}), records.live.get("checkpoints", {})
            if not steps:
                click.echo("the slots are starting", err=True)
                continue
            rows_read = sum(step["records_out"] for uid, step in steps.items() if uid in flow.sources)
            rows_written = sum(step["records_in"] for uid, step in steps.items() if uid in flow.sinks)
            completed = checkpoints.get("completed", 0)
            click.echo(f"rows read {rows_read:,}, written {rows_written:,}; checkpoints {completed:,}", err=True)

    endless = [uid for uid, source in flow.sources.items() if not source.bounded]
    if endless:
        advice = "Ctrl-C stops the job with a savepoint"
        click.echo(f"{', '.join(endless)} reads without end: {advice}.", err=True)
    printer = threading.Thread(target=print_lines, name="progress", daemon=True)
    printer.start()
    try:
        yield
    finally:
        ended.set()
        printer.join()


@contextmanager
def _stop_at_interrupt(records: "MemoryRunStore", master: "JobMaster") -> Iterator[None]:
    """Ctrl-C requests a stop; Ctrl-C again raises KeyboardInterrupt. Call in the main thread."""
    from runtime.core.attempt.events import OperationRequest

    def on_interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, previous)
        click.echo("stopping with a savepoint; Ctrl-C again ends the job at once, without it", err=True)
        records.operations.append(OperationRequest("interrupt", "stop"))
        threading.Thread(target=master.poke, daemon=True).start()  # the handler may interrupt code that holds its lock

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _stdin() -> str:
    return "" if sys.stdin.isatty() else sys.stdin.read()


def _run_stage(*arguments: str) -> None:
    """Runs a command of `spark_jobs`, which takes the parameters from stdin and writes JSON."""
    from spark_jobs.__main__ import main

    sys.exit(main(arguments))


COMMANDS = (pipelines, compile, run, batch)
