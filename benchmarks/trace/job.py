"""The traced jobs: a job steered through the console's API, and a job that forwards batches."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.trace.recorder import CHECKPOINTS, REASON, VALUES, Recorder, Trace
from runtime.clock import SystemClock
from runtime.connectors.formats.json_lines import JsonLinesFormat
from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.job.ids import ChannelId, Token
from runtime.core.job.key_groups import default_max_parallelism, key_group_owner
from runtime.core.job.messages import Message
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.builder import Dataflow
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.io.postgres.listener import OperationsListener
from runtime.io.postgres.store import PostgresRunStore
from runtime.io.socket_exchange import SocketExchange
from runtime.launch.local import LocalLauncher
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from runtime.operators.aggregates import Count
from runtime.ports import Exchange, ExchangeListener
from runtime.state.index.hashing import key_groups
from stack.services import start_postgres

ROUNDS: Final = 12
SAVEPOINTS: Final = 16
PATIENCE_S: Final = 240.0
INTERVAL_MS: Final = 600
FORWARDED_ROWS: Final = 1_000_000
STATE_KEYS: Final = 200_000
SCHEMA: Final = pa.schema([("key", pa.int64())])


class Adopting:
    """Wraps an `ExchangeListener` to trace the threads of gRPC, which Python did not start."""

    def __init__(self, listener: ExchangeListener, recorder: Recorder) -> None:
        self._listener, self._recorder = listener, recorder

    def on_message(self, channel: ChannelId, message: Message) -> None:
        self._recorder.adopt()
        self._listener.on_message(channel, message)

    def on_credit(self, channel: ChannelId, nbytes: int) -> None:
        self._listener.on_credit(channel, nbytes)

    def on_lost(self, channel: ChannelId, reason: str, is_own: bool = False) -> None:
        self._listener.on_lost(channel, reason, is_own)


class ChannelLauncher(LocalLauncher):
    """Starts slots as threads, with the channels of slots on Spark: Unix sockets within a host."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def open_exchange(self, slot: int, token: Token, secret: str, listener: ExchangeListener) -> Exchange:
        return SocketExchange(slot, token, secret, Adopting(listener, self._recorder))


# ---------------------------------------------------------------- the job that is steered


@contextmanager
def console(home: FilePath) -> Iterator[str]:
    """Starts Postgres with the console's tables and sets up Django. Yields the address of Postgres."""
    home.chmod(0o711)  # the account of the Postgres server needs access to its subfolder
    with start_postgres(home) as server:
        os.environ |= {
            "DATABASE_URL": server.url, "CELERY_BROKER_URL": "redis://127.0.0.1:1/0", "WEIR_VAR": str(home),
            "DJANGO_SECRET_KEY": "trace", "DJANGO_SETTINGS_MODULE": "console.settings",
        }  # fmt: skip
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        yield server.url


class Steered:
    """A run of the console whose master and slots are threads of this process."""

    def __init__(self, home: FilePath, url: str, recorder: Recorder) -> None:
        from django.test import Client

        from console.accounts import tokens
        from console.accounts.models import Scope, User
        from console.jobs.models import Job, JobVersion, Run
        from console.runs import run_store

        self.home, self.files, self.rows = home, 0, 0
        user = User.objects.create_superuser("tracer", password="of no use elsewhere")  # noqa: S106
        job = Job.objects.create(
            name="traced", pipeline="traced", created_by=user, last_checkpoint_id=CHECKPOINTS.start
        )
        graph = {"operators": [], "code": {"package": "", "version": "", "graph": ""}}
        version = JobVersion.objects.create(job=job, number=1, parallelism=2, state="ready", graph=graph)
        run = Run.objects.create(job=job, version=version, parallelism=2, state="queued")
        token = run_store.claim(run.pk, "trace:0:0")
        assert token is not None, "a queued run can be claimed"
        self.job, self.run = job.pk, run.pk
        self._headers = {
            "HTTP_HOST": "localhost",
            "HTTP_AUTHORIZATION": f"Bearer {tokens.issue(user, scopes=Scope).text}",
        }
        self._client = Client()
        self.records = PostgresRunStore(url, run.pk, Token(token), version.max_parallelism)
        self.master = JobMaster(
            MasterConfig(
                job_id=str(job.pk), token=Token(token), job=self._flow().compile(2), storage=str(home / "storage"),
                coordinator=CoordinatorSettings(interval_ms=INTERVAL_MS, min_pause_ms=0),
            ),
            self.records, FileStore(str(home / "storage")), ChannelLauncher(recorder), SystemClock(),
        )  # fmt: skip
        self.listener = OperationsListener(url, run.pk, self.master.poke)
        self.thread = threading.Thread(target=self.master.run, name="master", daemon=True)
        self.thread.start()

    def _flow(self) -> Dataflow:
        (self.home / "in").mkdir()
        flow = Dataflow("traced")
        source = DirectorySource(str(self.home / "in"), JsonLinesFormat(SCHEMA), discovery_interval_ms=50)
        counts = flow.source("files", source, parallelism=1).key_by("key").aggregate("counts", {"n": Count()})
        counts.sink("out", ParquetSink(str(self.home / "out")))
        return flow

    def write(self, *keys: int) -> None:
        """Writes a file with a row for each key, each a new one, and waits until its output is committed."""
        self.files += 1
        self.rows += len(keys)
        hidden = self.home / "in" / f".{self.files}"
        hidden.write_text("".join(json.dumps({"key": key}) + "\n" for key in keys))
        hidden.rename(self.home / "in" / f"{self.files:04}.json")
        self.wait(lambda: self.committed_rows() == self.rows)

    def committed_rows(self) -> int:
        return sum(pq.read_metadata(file).num_rows for file in (self.home / "out").glob("part-*.parquet"))

    def savepoint(self, reason: str) -> tuple[str, str, int]:
        """Takes a savepoint over REST, and waits for it. Returns its reason, operation and checkpoint."""
        made = self._call("post", f"/api/v1/jobs/{self.job}/operations/", {"kind": "savepoint", "reason": reason})
        operation = str(made["id"])
        self.wait(lambda: self.operation(operation)["state"] == "succeeded")
        return reason, operation, int(self.operation(operation)["result"]["checkpoint"])

    def operation(self, number: str) -> Any:
        return self._call("get", f"/api/v1/operations/{number}/")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        sent = {} if body is None else {"data": json.dumps(body), "content_type": "application/json"}
        answer = getattr(self._client, method)(path, **sent, **self._headers)
        assert answer.status_code < 300, answer.content
        return answer.json()

    def wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, f"it does not come; the master is alive: {self.thread.is_alive()}"
            assert self.thread.is_alive(), "the master ended"
            time.sleep(0.05)

    def end(self) -> None:
        self.master.release()
        self.thread.join(PATIENCE_S)
        self.listener.close()
        self.records.close()


def keys_of_slot_1() -> list[int]:
    """Keys whose state makes slot 1 acknowledge a savepoint last, so the savepoint's path crosses the channel."""
    keys = pa.record_batch({"key": pa.array(range(STATE_KEYS), pa.int64())})
    max_parallelism = default_max_parallelism(2)
    groups = key_groups(keys, ["key"], max_parallelism)
    return [key for key, group in enumerate(groups) if key_group_owner(int(group), max_parallelism, 2) == 1]


def steer(home: FilePath) -> tuple[Trace, list[tuple[str, str, int]]]:
    """Runs the job. Returns the trace, and the reason, operation and checkpoint of each savepoint."""
    recorder, keys = Recorder(), keys_of_slot_1()
    with console(home) as url:
        recorder.install()
        steered = Steered(home, url, recorder)
        try:
            steered.write(*keys)
            for number in range(ROUNDS):
                steered.write(VALUES[number])
            made = [steered.savepoint(f"{REASON}-{number}") for number in range(SAVEPOINTS)]
        finally:
            recorder.uninstall()
            steered.end()
    return recorder.trace, made


def forward(home: FilePath) -> Trace:
    """Runs a job that forwards batches to its end."""
    recorder = Recorder()
    flow = Dataflow("forwarding")
    rows = flow.source("rows", SequenceSource(rows=FORWARDED_ROWS), parallelism=1)
    rows.map_batches("forward", lambda batch: batch).sink("out", DiscardSink())
    config = MasterConfig(job_id="forwarding", token=Token(1), job=flow.compile(2), storage=str(home / "forwarding"))
    store = FileStore(config.storage)
    recorder.install()
    try:
        JobMaster(config, MemoryRunStore(token=Token(1)), store, ChannelLauncher(recorder), SystemClock()).run()
    finally:
        recorder.uninstall()
    return recorder.trace
