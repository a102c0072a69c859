"""Commands of authors: list the installed pipelines, compile them, and run them without a console.

Parameters are a JSON object on stdin; on a terminal there are none.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from typing import ParamSpec

import click

from weir.control.command import json_option
from weir.control.output import write_rows

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
@click.option("--storage", help="Folder for checkpoints [a temporary one].")
@json_option
def run(pipeline: str, parallelism: int, storage: str | None, as_json: bool) -> None:
    """Runs a job to its end in this process, without Spark, and shows the rows of each step."""
    from runtime.data_roots import DataRoots
    from runtime.dataflow.pipelines import PipelineContext
    from runtime.dataflow.pipelines import pipeline as find_pipeline
    from runtime.io import logs
    from runtime.launch.local import run_local
    from spark_jobs.stages.standing import parse_params

    logs.configure()
    with tempfile.TemporaryDirectory() as folder:
        context = PipelineContext("", DataRoots.of_environment(os.environ))
        flow = find_pipeline(pipeline).dataflow(parse_params(_stdin()), context)
        records = run_local(flow, parallelism=parallelism, storage=storage or folder)
    steps = records.live["operators"].items()
    rows = [{"step": uid, "rows_in": each["records_in"], "rows_out": each["records_out"]} for uid, each in steps]
    write_rows(rows, ("step", "rows_in", "rows_out"), as_json=as_json)


def _stdin() -> str:
    return "" if sys.stdin.isatty() else sys.stdin.read()


def _run_stage(*arguments: str) -> None:
    """Runs a command of `spark_jobs`, which takes the parameters from stdin and writes JSON."""
    from spark_jobs.__main__ import main

    sys.exit(main(arguments))


COMMANDS = (pipelines, compile, run, batch)
