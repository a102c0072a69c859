"""Process of a job master, for any engine: `python -m MODULE run RUN TOKEN`.

It reads the run from Postgres and ends when its stdin closes: no master outlives its supervisor.
"""

import argparse
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from runtime.access.data_roots import DataRoots
from runtime.access.redaction import redact_json
from runtime.access.secrets import register_references
from runtime.access.spark_settings import (
    REMOTE_VARIABLE,
    SETTINGS_VARIABLE,
    TOKEN_VARIABLE,
    set_added_settings,
    set_slot_server,
)
from runtime.connectors.sinks.discard import DiscardSink
from runtime.core.job.code_identity import CodeIdentity
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode, RunEvent
from runtime.core.job.settings import JobSettings
from runtime.core.snapshot.manifest import columns_folder, streams_folder
from runtime.core.snapshot.manifest_codec import parse_keys
from runtime.dataflow.code_identity import code_identity
from runtime.dataflow.pipelines import PipelineContext, parameter_schema, pipeline
from runtime.dataflow.plan import CompiledJob
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io import logs
from runtime.io.manifests import set_signing_keys
from runtime.io.postgres.store import PostgresRunStore, RunRow, load_run
from runtime.io.store import storage_uri
from runtime.master.metadata_thread import RETRY_INTERVAL_S
from runtime.master.package_import import PackageImport

EXIT_ORPHANED: Final = 7  #: exit code when the supervisor has gone

log = structlog.get_logger()


def run_master(module: str, master: Callable[[RunRow, int, Token, str], MasterExitCode]) -> int:
    """Runs `master` with the run's row and id, the attempt's token and the Postgres URL. Returns the exit code.

    If the job is rejected the run fails, with the reason in its failure.
    """
    parser = argparse.ArgumentParser(prog=module, description="Job master of a run.")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run", help="run a claimed attempt")
    command.add_argument("run", type=int)
    command.add_argument("token", type=int)
    arguments: Any = parser.parse_args()
    logs.configure()
    log.info("master begins", token=arguments.token)
    threading.Thread(target=_exit_with_stdin, name="stdin", daemon=True).start()
    structlog.contextvars.bind_contextvars(run=arguments.run)
    # Spark and its workers, which run the author's code, inherit the environment.
    url, keys = os.environ.pop("DATABASE_URL"), os.environ.pop("WEIR_MANIFEST_KEY", "")
    set_signing_keys(parse_keys(keys))
    set_added_settings(os.environ.get(SETTINGS_VARIABLE, ""))
    # PySpark reads them too.
    set_slot_server(os.environ.pop(REMOTE_VARIABLE, ""), os.environ.pop(TOKEN_VARIABLE, ""))
    touch_heartbeat()
    row, token = _load_run(url, arguments.run), Token(arguments.token)
    try:
        imported = _import_package(row, arguments.run, token, url)  # before a pipeline is loaded
        if isinstance(imported, MasterExitCode):
            return int(imported)
        token = imported
        logs.configure(redaction_of(row))
        return int(master(row, arguments.run, token, url))
    except JobRejected as error:
        failure = {"code": error.code, "message": str(error), "detail": error.detail}
        records = records_of(row, arguments.run, token, url)
        records.end_attempt("failed", str(error))
        records.change_state(RunEvent.GAVE_UP, failure)
        return int(MasterExitCode.DONE)


def _import_package(row: RunRow, run: int, token: Token, url: str) -> Token | MasterExitCode:
    """The token with which the run goes on, or the exit code. Raises JobRejected for bad settings."""
    register_references(row.params)
    redact = partial(redact_json, params=row.params, schema={})  # the schema is in the package
    records = PostgresRunStore(url, run, token, row.max_parallelism, redact)
    try:
        return PackageImport(records, token, settings_of(row).restart, touch_heartbeat).run()
    finally:
        records.close()


def records_of(row: RunRow, run: int, token: Token, url: str) -> PostgresRunStore:
    """Records of the run. They redact secret parameters, whichever error quotes them."""
    return PostgresRunStore(url, run, token, row.max_parallelism, redact=redaction_of(row))


def redaction_of(row: RunRow) -> Callable[[Any], Any]:
    """Function that redacts the run's secret parameters and resolved secrets in JSON values."""
    register_references(row.params)
    try:
        schema = parameter_schema(pipeline(row.pipeline))
    except JobRejected:  # reported when the job is compiled; parameter names still mark secrets
        schema = {}
    return lambda value: redact_json(value, row.params, schema)


def settings_of(row: RunRow) -> JobSettings:
    """The run's settings. Raises JobRejected if other software wrote them: a retry cannot help."""
    try:
        return msgspec.convert(dict(row.settings), JobSettings)
    except msgspec.ValidationError as error:
        raise JobRejected("bad-settings", "settings", str(error)) from error


def touch_heartbeat() -> None:
    """Touches the heartbeat file, by which the supervisor distinguishes a busy master from a hung master."""
    path = os.environ.get("WEIR_BEAT_FILE")
    if path:
        Path(path).touch()


def compile_job(row: RunRow) -> tuple[CompiledJob, CodeIdentity]:
    """Compiles the job. Returns it with the identity of its code.

    Raises:
        JobRejected: the job cannot run, or a folder has become a link that leaves WEIR_DATA_ROOTS.
    """
    offered = pipeline(row.pipeline)
    inputs = Path(os.environ["WEIR_INPUTS"])
    context = PipelineContext(
        str(inputs / str(row.job_id) / str(row.lineage)),
        DataRoots.of_environment(os.environ),
        column_root=str(inputs / columns_folder(row.job_id, row.version_id)),
        stream_root=str(stream_root(row)),
    )
    flow = offered.dataflow(row.params, context)
    flow.max_parallelism = row.max_parallelism
    code = code_identity(row.pipeline, flow, row.max_parallelism)  # before isolation, which changes the graph
    if row.discards_output:
        flow.isolate(DiscardSink())
    return flow.compile(row.parallelism), code


def record_code(records: PostgresRunStore, code: CodeIdentity) -> None:
    """Records the code that the run executes. A failure is logged only: nothing but a warning depends on the record."""
    try:
        records.record_code(code)
    except EnvironmentFailure as error:
        log.warning("the code of the run is not recorded", error=str(error))


def storage_of(row: RunRow) -> str:
    """The storage of the job's checkpoints."""
    return f"{storage_uri('WEIR_STORAGE', os.environ['WEIR_STORAGE'])}/{row.job_id}"


def stream_root(row: RunRow) -> Path:
    """Folder that the run and its standing stages share."""
    return Path(os.environ["WEIR_INPUTS"]) / streams_folder(row.job_id, row.lineage)


def _load_run(url: str, run: int) -> RunRow:
    while True:
        try:
            return load_run(url, run)
        except EnvironmentFailure as error:
            log.warning("waiting for the database", error=str(error))
            threading.Event().wait(RETRY_INTERVAL_S)


def _exit_with_stdin() -> None:
    """Exits when the supervisor, which holds stdin, is gone. The JVM ends with this process, slots end with the JVM."""
    while os.read(0, 4096):
        pass
    log.warning("the supervisor is gone")
    os._exit(EXIT_ORPHANED)
