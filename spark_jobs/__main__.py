"""`python -m spark_jobs`: the command line that the console calls. `weir` calls `compile` and `batch` for authors.

Parameters arrive as JSON on stdin. Stdout carries the JSON answer only. Exit codes: 0 done, 2 wrong usage, 3 refused
(`{"error": {"code", "field", "detail"}}`), 4 storage, Spark or a service is unavailable, so a repetition may succeed,
1 failed otherwise (both with such an error, and the cause on stderr). `state` and `verify` write progress lines before
their answer. `stand` reads a single line of stdin and runs until SIGTERM or the end of stdin. It writes its reports,
one per line, before its answer (`spark_jobs.stages.standing`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TextIO

from packaging.utils import canonicalize_name

from runtime.access.data_roots import DataRoots
from runtime.access.job_package import package_folder
from runtime.access.redaction import redact
from runtime.access.secrets import register_references
from runtime.connectors.sinks.epoch_stage import EpochStage
from runtime.connectors.sources.epochs import EpochSource
from runtime.core.job.settings import ExecutionMode
from runtime.dataflow.pipelines import PipelineContext, package_of, pipeline
from runtime.durable import make_folder
from runtime.errors import JobRejected, is_outage
from runtime.io.package_cache import import_package
from runtime.io.store import check_folder_storage, storage_uri
from runtime.master.shared_folders import check_inputs
from spark_jobs.batch import run as running
from spark_jobs.session import SparkSettings, SparkUnavailable, error_summary, spark_session
from spark_jobs.sources.table import SparkTable
from spark_jobs.stages import compile as compiling
from spark_jobs.stages import deliver, stream, tables
from spark_jobs.stages.describe import describe_package
from spark_jobs.stages.standing import StageContext, StageFailure, parse_params, read_params, stop_on_sigterm

FAILED_EXIT_CODE: Final = 1
REFUSED_EXIT_CODE: Final = 3
UNAVAILABLE_EXIT_CODE: Final = 4
#: Verb of `stand` -> the function that runs the stage. A source or sink names its verb in the attribute `stage`.
STANDING_STAGES: Final[Mapping[str, Callable[[StageContext], None]]] = {
    EpochSource.stage: stream.write_epochs,
    EpochStage.stage: deliver.deliver_epochs,
    SparkTable.stage: tables.write_tables,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command."""
    return _run(_parser().parse_args(argv))


def _run(arguments: argparse.Namespace) -> int:
    answers = arguments.answers = _reserve_stdout()
    try:
        import_package(os.environ)
        code, answer = 0, arguments.command(arguments)
    except JobRejected as refusal:
        code, answer = REFUSED_EXIT_CODE, _error(refusal.code, refusal.field, refusal.detail)
    except StageFailure as failure:
        code, answer = FAILED_EXIT_CODE, _error(failure.code, failure.field, failure.detail)
        sys.stderr.write(f"{failure.field}: {redact(failure.detail)}\n")
    except SparkUnavailable as failure:
        code, answer = UNAVAILABLE_EXIT_CODE, _error("spark-unavailable", _subject(arguments), str(failure))
        sys.stderr.write(f"{_subject(arguments)}: {redact(str(failure))}\n")
    except Exception as failure:  # noqa: BLE001 - process boundary: any error of a pipeline becomes an answer
        sys.stderr.write(redact(traceback.format_exc()))
        failed = (FAILED_EXIT_CODE, "stage-failed")
        code, name = (UNAVAILABLE_EXIT_CODE, "unavailable") if is_outage(failure) else failed
        answer = _error(name, _subject(arguments), error_summary(failure))
        # Readers of a log look at its last line.
        sys.stderr.write(f"{_subject(arguments)}: {redact(error_summary(failure))}\n")
    with answers:
        json.dump(answer, answers)
        answers.write("\n")
    return code


def _reserve_stdout() -> TextIO:
    """Reserves stdout for the answer: output of Spark's JVM and of pipelines is redirected to stderr."""
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m spark_jobs", description="Compile pipelines and run their stages.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("pipelines", help="list the installed pipelines with the schema of their parameters")
    listing.set_defaults(command=lambda _: compiling.describe_pipelines(), pipeline="")
    describing = commands.add_parser("describe", help="describe a package: pipelines, versions, libraries")
    describing.add_argument("folder", nargs="?", type=Path, help="its files; default: the package of this process")
    describing.set_defaults(command=_describe, pipeline="package")
    compiler = commands.add_parser("compile", help="parameters on stdin → the job graph")
    compiler.add_argument("--pipeline", required=True)
    compiler.add_argument("--parallelism", required=True, type=int)
    compiler.add_argument("--max-parallelism", type=int)
    compiler.add_argument("--mode", type=ExecutionMode, choices=list(ExecutionMode), default=ExecutionMode.STREAMING)
    compiler.add_argument("--columns", default="", help="folder for the column schemas that Spark reports")
    compiler.set_defaults(command=_compile)
    batch = commands.add_parser("batch", help="parameters on stdin → the whole job as a Spark plan, rows by sink")
    batch.add_argument("--pipeline", required=True)
    batch.add_argument("--parallelism", required=True, type=int)
    batch.add_argument("--storage", required=True, help="folder for the manifest of the run's end, one per job")
    batch.set_defaults(command=_batch)
    reading = commands.add_parser("state", help="a query on stdin → a table of the state of a checkpoint")
    reading.add_argument("--checkpoint", required=True, help="folder of the checkpoint")
    reading.set_defaults(command=_state, pipeline="state")
    checking = commands.add_parser("verify", help="compare the states of a checkpoint with their proofs")
    checking.add_argument("--checkpoint", required=True, help="folder of the checkpoint")
    checking.add_argument("--skip", type=int, default=0, help="number of states that were compared before")
    checking.set_defaults(command=_verify, pipeline="verify")
    standing = commands.add_parser("stand", help="run a standing stage beside a job until it is asked to end")
    standing.add_argument("verb", choices=sorted(STANDING_STAGES))
    standing.add_argument("--pipeline", required=True)
    standing.add_argument("--operator", required=True, help="uid of the source or sink that the stage serves")
    standing.add_argument("--run", required=True, type=int)
    standing.add_argument("--token", required=True, type=int, help="fencing token of this process, higher than earlier")
    standing.add_argument("--inputs", required=True, type=Path, help="folder of the tables that the run reads")
    standing.add_argument("--columns", required=True, type=Path, help="folder of the version's column schemas")
    standing.add_argument("--streams", required=True, type=Path, help="folder that the stage shares with the run")
    standing.set_defaults(command=_stand)
    return parser


def _describe(arguments: argparse.Namespace) -> dict[str, Any]:
    folder = arguments.folder or package_folder()
    if folder is None:
        raise JobRejected("bad-package", "package", "name a folder")
    description = describe_package(folder.absolute())
    for each in description["pipelines"]:
        each["distribution"] = canonicalize_name(package_of(each["name"]).name)
    return description


def _compile(arguments: argparse.Namespace) -> dict[str, Any]:
    a = arguments
    context = PipelineContext("", DataRoots.of_environment(os.environ), a.columns)
    return compiling.compile_graph(a.pipeline, _params(), context, a.parallelism, a.max_parallelism, a.mode)


def _batch(arguments: argparse.Namespace) -> dict[str, Any]:
    a = arguments
    check_folder_storage("storage", a.storage)
    settings = SparkSettings.for_batch(f"weir: {a.pipeline}", cores=a.parallelism)
    storage = Path(storage_uri("storage", a.storage))
    make_folder(storage)
    with TemporaryDirectory(prefix=".streams-", dir=storage) as streams:  # a run that fails keeps no epochs
        context = PipelineContext("", DataRoots.of_environment(os.environ), stream_root=streams)
        job = pipeline(a.pipeline).dataflow(_params(), context).compile(a.parallelism)
        check_inputs(job)
        with running.plan_with_session(job, lambda: spark_session(settings)) as (plan, spark):
            return {"rows": running.run_plan(job, plan, spark=spark, storage=str(storage)).rows}


def _state(arguments: argparse.Namespace) -> dict[str, Any]:
    from spark_jobs.state.stage import answer_query  # imports PySpark: slow, and not needed by the other commands

    return answer_query(arguments.checkpoint, _params(), arguments.answers)


def _verify(arguments: argparse.Namespace) -> dict[str, Any]:
    from spark_jobs.state.check import answer_check  # imports Arrow's files: not needed by the other commands

    return answer_check(arguments.checkpoint, arguments.skip, arguments.answers)


def _stand(arguments: argparse.Namespace) -> dict[str, Any]:
    a = arguments
    params = read_params(sys.stdin)
    register_references(params)  # a Spark task resolves them, and Spark passes on its error
    standing = StageContext(
        pipeline=pipeline(a.pipeline), params=params, operator=a.operator, run=a.run, token=a.token,
        inputs=a.inputs.absolute(), columns=a.columns.absolute(), streams=a.streams.absolute(), answers=a.answers,
    )  # fmt: skip
    stop_on_sigterm(standing.stopping)
    standing.write_reports()
    STANDING_STAGES[a.verb](standing)
    standing.write_report()
    return {"done": not standing.stopping.is_set()}


def _params() -> Mapping[str, Any]:
    params = parse_params(sys.stdin.read())
    register_references(params)
    return params


def _error(code: str, field: str, detail: str) -> dict[str, Any]:
    return {"error": {"code": code, "field": field, "detail": redact(detail)}}


def _subject(arguments: argparse.Namespace) -> str:
    return str(getattr(arguments, "operator", "") or arguments.pipeline)


if __name__ == "__main__":
    sys.exit(main())
