"""Job master's records in Postgres: every write is conditional on the attempt's token.

The loss of the connection is an EnvironmentFailure, which callers retry. The console's migrations own the tables;
`queries.sql` names the columns.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.errors import CheckViolation, ReadOnlySqlTransaction
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from runtime.access.redaction import redact_failure, storable_json, storable_text
from runtime.core.attempt.events import OperationRequest
from runtime.core.checkpoint.acknowledgements import as_columns
from runtime.core.checkpoint.effects import ReportCheckpoint
from runtime.core.checkpoint.retention_plan import RetainedCheckpoint, plan_retention
from runtime.core.job.code_identity import CodeIdentity
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import RunEvent, RunState, next_state
from runtime.core.job.settings import RetentionPolicy
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io.postgres.queries import statement
from runtime.keepalive import CLIENT_KEEPALIVES, SERVER_KEEPALIVES
from runtime.run_store import CompletedCheckpoint, LaunchTimes, MetricsInterval, PendingProgress

T = TypeVar("T")
#: A vanished server is detected within seconds, not after the kernel's quarter of an hour.
_TIMEOUTS: Final[dict[str, Any]] = {"connect_timeout": 3, "tcp_user_timeout": 5_000, **CLIENT_KEEPALIVES}
#: As in Django. Without this encoding psycopg returns text of an SQL_ASCII database as bytes.
_ENCODING: Final = "utf8"
#: A report waits no longer for a lock: the master's loop and the end of a run may wait for the report.
_REPORT_LOCK_TIMEOUT: Final = "2s"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run with its job and version, as the console wrote them."""

    job_id: int
    lineage: int  #: id of the lineage's first run; the run's own id if it began from empty state
    job_name: str
    version_id: int
    version_parallelism: int
    parallelism: int
    max_parallelism: int
    pipeline: str
    params: Mapping[str, Any]
    settings: Mapping[str, Any]
    state: str
    token: int
    allow_unmapped: bool
    discards_output: bool  #: the job is a clone, which writes to no target
    has_checkpoint: bool  #: an earlier attempt of this run completed a checkpoint


def connect(url: str) -> "psycopg.Connection[dict[str, Any]]":
    """Connects with autocommit. Raises EnvironmentFailure if Postgres cannot be reached."""
    try:
        conninfo = make_conninfo(url, client_encoding=_ENCODING, **_TIMEOUTS)
        connection = psycopg.connect(conninfo, autocommit=True, row_factory=dict_row)
        connection.execute(SERVER_KEEPALIVES)
    except psycopg.OperationalError as error:
        raise EnvironmentFailure(f"Postgres cannot be reached: {error}") from error
    return connection


def load_run(url: str, run: int) -> RunRow:
    """The row of `run`. Raises JobRejected if there is no such run."""
    with connect(url) as connection:
        row = connection.execute(statement("load_run"), {"run": run}).fetchone()
    if row is None:
        raise JobRejected("unknown-run", "run", f"there is no run {run}")
    return RunRow(**row)


class PostgresRunStore:
    """Implements `run_store.RunStore`. Thread-safe: calls are serialized."""

    def __init__(
        self, url: str, run: int, token: Token, max_parallelism: int, redact: Callable[[Any], Any] = lambda value: value
    ) -> None:
        """`redact` removes secrets from text and JSON that users see."""
        self._run, self._token, self._redact = run, token, redact
        self._max_parallelism = max_parallelism
        self._drawn_token: Token | None = None
        self._connection, self._report_connection = _Connection(url), _Connection(url, _REPORT_LOCK_TIMEOUT)
        self._lock = threading.RLock()

    def record_code(self, code: CodeIdentity) -> None:
        """Records the code that the run executes from now on."""
        self._execute("record_code", code=Jsonb(msgspec.to_builtins(code)))

    # ------------------------------------------------------------ checkpoints

    def next_checkpoint_id(self) -> int | None:
        row = self._fetch_one("next_checkpoint_id")
        return None if row is None else int(row["last_checkpoint_id"])

    def report_checkpoint(self, report: ReportCheckpoint) -> None:
        values = {
            "number": report.checkpoint,
            "kind": str(report.kind),
            "triggered_at": _to_datetime(report.triggered_at),
            "acknowledged": report.acknowledged,
            "subtasks": report.subtasks,
            "max_parallelism": self._max_parallelism,
            "acknowledgements": Jsonb(as_columns(report.progress)),
        }
        self._execute("report_checkpoint", **values)
        if report.reason is not None:
            self._execute(
                "fail_checkpoint",
                number=report.checkpoint,
                reason=str(report.reason),
                detail=self._text(report.detail),
                acknowledged=report.acknowledged,
                at=_to_datetime(report.at),
                duration_ms=report.at - report.triggered_at,
            )

    def record_checkpoint(self, completed: CompletedCheckpoint) -> bool:
        manifest = completed.manifest
        row = self._fetch_one(
            "record_completed",
            number=manifest.checkpoint,
            kind=str(manifest.kind),
            triggered_at=_to_datetime(manifest.triggered_at),
            at=_to_datetime(completed.at),
            duration_ms=completed.at - manifest.triggered_at,
            size_bytes=completed.size_bytes,
            written_bytes=completed.written_bytes,
            subtasks=sum(len(o.subtasks) for o in manifest.operators.values()),
            path=completed.folder,
            operators=Jsonb(completed.operators),
            finished=Jsonb(list(manifest.finished_operators())),
            max_parallelism=manifest.max_parallelism,
        )
        return row is not None

    def restore_point(self, passed_over: Sequence[str] = ()) -> str | None:
        return self._fetch_path("restore_point", passed_over=list(passed_over))

    def checkpoints_since(self, checkpoint: int) -> list[int]:
        return [row["number"] for row in self._fetch_all("committed_since", number=checkpoint)]

    def final_savepoint(self) -> str | None:
        return self._fetch_path("final_savepoint")

    def retained_folders(self) -> list[str]:
        return [row["path"] for row in self._fetch_all("retained")]

    def discard_older(self, policy: RetentionPolicy) -> list[str]:
        rows = self._fetch_all("retention_candidates")
        restored = next((row["number"] for row in rows if row["is_restored"]), None)
        columns = ("number", "run", "triggered_ms", "is_pinned", "is_in_review", "is_held")
        retained = [RetainedCheckpoint(**{name: row[name] for name in columns}) for row in rows]
        plan = plan_retention(retained, policy, run=self._run, restored=restored)
        if not plan.discarded:
            return []
        return [row["path"] for row in self._fetch_all("discard", numbers=list(plan.discarded))]

    # ------------------------------------------------------------ the run and its attempts

    def change_state(
        self, event: RunEvent, failure: Mapping[str, Any] | None = None, savepoint: int | None = None
    ) -> RunState | None:
        def work(connection: "psycopg.Connection[dict[str, Any]]") -> RunState | None:
            with connection.transaction():
                row = connection.execute(statement("lock_run"), self._run_and_token()).fetchone()
                if row is None:
                    return None
                before = RunState(row["state"])
                state = next_state(before, event) or before
                if state is not before:
                    values = {"state": str(state), "terminal": state.is_terminal, "failure": self._jsonb(failure)}
                    connection.execute(statement("set_state"), self._run_and_token() | values)
                if savepoint is not None:
                    result = {"result": Jsonb({"checkpoint": savepoint})}
                    connection.execute(statement("settle_ending"), self._run_and_token() | result)
                return state

        return self._with_connection(work)

    def next_attempt(self, reason: str, detail: Mapping[str, Any]) -> Token | None:
        if self._drawn_token is None:  # kept for retries: the answer to a commit may be lost
            row = self._fetch_one("draw_token")
            assert row is not None, "a sequence always answers"
            self._drawn_token = Token(row["token"])
        drawn = self._drawn_token

        def work(connection: "psycopg.Connection[dict[str, Any]]") -> Token | None:
            with connection.transaction():
                entry = connection.execute(statement("take_token"), self._run_and_token() | {"drawn": drawn}).fetchone()
                if entry is None:
                    return None
                values = {"outcome": "failed", "reason": self._text(reason), "detail": self._jsonb(detail)}
                connection.execute(statement("end_attempt"), self._run_and_token() | values)
                connection.execute(statement("begin_attempt"), {"run": self._run, "token": drawn})
                return drawn

        with self._lock:
            token = self._with_connection(work)
            self._drawn_token = None
            if token is not None:
                self._token = token
            return token

    def end_attempt(self, outcome: str, reason: str = "") -> None:
        self._execute("end_attempt", outcome=outcome, reason=self._text(reason), detail=None)

    def record_restore(self, folder: str | None) -> None:
        self._execute("note_restored", path=folder)

    def record_launch(self, times: LaunchTimes) -> None:
        self._execute("note_launch", times=Jsonb(msgspec.to_builtins(times)))

    def write_live(self, live: Mapping[str, Any], pending: PendingProgress | None = None) -> None:
        under_way = {
            str(checkpoint): {
                "acknowledged": sum(subtask.at_ms is not None for subtask in progress),
                "subtasks": as_columns(progress),
            }
            for checkpoint, progress in (pending or {}).items()
        }
        report = self._jsonb(live) if "ending" in live else Jsonb(dict(live))  # errors may quote secrets
        self._report("write_live", live=report, pending=Jsonb(under_way))

    def add_history(self, intervals: Sequence[MetricsInterval]) -> None:
        rows = [{"at": interval.at, **row} for interval in intervals for row in interval.rows]
        subtasks = [{"at": interval.at, "operators": interval.subtasks} for interval in intervals]
        try:
            self._report("add_history", rows=Jsonb(rows), subtasks=Jsonb(subtasks))
        except CheckViolation as error:  # the partition was attached while the insert waited for the default partition
            raise EnvironmentFailure(f"Postgres: {error}") from error

    # ------------------------------------------------------------ operations

    def take_operations(self, *, only_cancel: bool) -> list[OperationRequest] | None:
        kinds = ["cancel"] if only_cancel else ["savepoint", "stop", "drain", "cancel"]
        rows = self._fetch_all("take_operations", kinds=kinds)
        if not rows and self._fetch_one("holds_run") is None:
            return None
        ordered = sorted(rows, key=lambda row: row["created_at"])
        return [OperationRequest(row["id"], row["kind"], row["request_id"]) for row in ordered]

    def requeue_operations(self) -> None:
        self._execute("requeue_operations")

    def complete_operation(self, id: str, result: Mapping[str, Any] | None, error: Mapping[str, Any] | None) -> None:
        state = "failed" if error else "succeeded"
        self._execute(
            "settle_operation", operation=id, state=state, result=self._jsonb(result), error=self._jsonb(error)
        )

    # ------------------------------------------------------------ redacted values

    def _text(self, value: str) -> str:
        return storable_text(str(self._redact(value)))

    def _jsonb(self, value: Mapping[str, Any] | None) -> Jsonb | None:
        if value is None:
            return None
        return Jsonb(redact_failure(value, self._redact), dumps=storable_json)

    # ------------------------------------------------------------ the connection

    def close(self) -> None:
        self._connection.close()
        self._report_connection.close()

    def _run_and_token(self) -> dict[str, Any]:
        return {"run": self._run, "token": self._token}

    def _fetch_path(self, name: str, **values: Any) -> str | None:
        row = self._fetch_one(name, **values)
        return None if row is None else str(row["path"])

    def _execute(self, name: str, **values: Any) -> None:
        self._with_connection(lambda connection: connection.execute(statement(name), self._run_and_token() | values))

    def _report(self, name: str, **values: Any) -> None:
        values |= self._run_and_token()
        self._report_connection.call(lambda connection: connection.execute(statement(name), values))

    def _fetch_one(self, name: str, **values: Any) -> dict[str, Any] | None:
        return self._with_connection(
            lambda connection: connection.execute(statement(name), self._run_and_token() | values).fetchone()
        )

    def _fetch_all(self, name: str, **values: Any) -> list[dict[str, Any]]:
        return self._with_connection(
            lambda connection: connection.execute(statement(name), self._run_and_token() | values).fetchall()
        )

    def _with_connection(self, work: "Callable[[psycopg.Connection[dict[str, Any]]], T]") -> T:
        with self._lock:
            return self._connection.call(work)


class _Connection:
    """A connection that is made when needed and replaced when lost. Thread-safe: calls are serialized."""

    def __init__(self, url: str, lock_timeout: str = "0") -> None:
        """`lock_timeout` limits each wait for a lock of Postgres; 0 is no limit."""
        self._url, self._lock_timeout, self._lock = url, lock_timeout, threading.Lock()
        self._connection: psycopg.Connection[dict[str, Any]] | None = None

    def call(self, work: "Callable[[psycopg.Connection[dict[str, Any]]], T]") -> T:
        """Calls `work`. Drops a lost connection and raises EnvironmentFailure; every statement may be repeated."""
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = connect(self._url)
                    self._connection.execute(sql.SQL("SET lock_timeout = {}").format(self._lock_timeout))
                return work(self._connection)
            except (psycopg.OperationalError, psycopg.InterfaceError, ReadOnlySqlTransaction) as error:
                self._drop()
                raise EnvironmentFailure(f"Postgres: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


def _to_datetime(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
