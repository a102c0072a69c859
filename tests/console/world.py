"""A world of real processes for the supervisor: Postgres, Redis, workers and a reconciler of its own, to be killed."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
from celery import Celery
from kombu import Connection
from psycopg.rows import dict_row

from stack.services import free_port, start_postgres, start_redis
from tests.waiting import until

ROOT = Path(__file__).parents[2]


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


class Worker:
    """A Celery worker process, in a process group with its beat."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def holds(self, owner: str) -> bool:
        """Whether a lease's owner ("host:pid:…") is a task of this worker."""
        return int(owner.split(":")[1]) == self.process.pid

    @property
    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return " ready." in self.log.read_text()

    def kill(self) -> None:
        """SIGKILL to worker and beat, as the kernel does to a whole machine."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class World:
    """The servers' addresses, and short ways to say what a test does."""

    def __init__(self, var: Path) -> None:
        self.var = var
        self.pg_port, self.redis_port = free_port(), free_port()
        self._pg, self._redis = contextlib.ExitStack(), contextlib.ExitStack()
        self._celery = Celery(set_as_current=False)
        self.start_postgres()
        self.start_redis()
        for name in ("orders", "seen", "run"):
            (var / name).mkdir()

    # ------------------------------------------------------------ servers

    def start_postgres(self) -> None:
        self.database_url = self._pg.enter_context(
            start_postgres(self.var / "server", port=self.pg_port, password="weir")
        ).url

    def stop_postgres(self) -> None:
        self._pg.close()

    def start_redis(self) -> None:
        server = start_redis(self.var / "broker", port=self.redis_port, password="weir")
        self.redis_url = self._redis.enter_context(server).url

    def stop_redis(self) -> None:
        self._redis.close()

    @property
    def environment(self) -> Mapping[str, str]:
        folders = {name: str(self.var / name.removeprefix("WEIR_").lower()) for name in ("WEIR_STORAGE", "WEIR_INPUTS")}
        return {
            **os.environ,
            **folders,
            "WEIR_VAR": str(self.var),
            "WEIR_LOGS": str(self.var / "log"),
            "WEIR_DATA_HOSTS": "127.0.0.1",
            "DATABASE_URL": self.database_url,
            "CELERY_BROKER_URL": self.redis_url,
            "DJANGO_SETTINGS_MODULE": "tests.console.programs.worker_settings",
            "DJANGO_SECRET_KEY": "of no use outside of this test",
            "PYTHONPATH": str(ROOT),
        }

    def migrate(self) -> None:
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=self.environment, check=True)

    @contextlib.contextmanager
    def worker(self, queue: str, *options: str, silence_s: int = 6) -> Iterator[Worker]:
        """A worker of one queue, ready to work. Killed at the end, if it lives.

        Args:
            silence_s: it kills a master that is silent for longer. The program that stands in for a master is never
                silent for seconds; a real master is while it loads its modules on a busy machine.
        """
        number = len(list(self.var.glob("worker-*.log")))
        log = self.var / f"worker-{number}.log"
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "console",
            "worker",
            "-Q",
            queue,
            "-n",
            f"w{number}@%h",
            *options,
        ]
        with log.open("wb") as out:
            environment = {**self.environment, "WEIR_TEST_SILENCE_S": str(silence_s)}
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out, process_group=0)
        worker = Worker(process, log)
        try:
            until(lambda: worker.is_ready)
            yield worker
        finally:
            worker.kill()

    # ------------------------------------------------------------ rows

    def sql(self, query: str, *values: object) -> list[dict[str, Any]]:
        with psycopg.connect(self.database_url, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(query, values)
            return cursor.fetchall() if cursor.description else []

    def new_run(self, state: str = "queued", params: str = "{}", **settings: int | str) -> int:
        """A job with one ready version and one run. Returns the run's id."""
        rows = self.sql(
            """
            WITH job AS (INSERT INTO weir_job (name, pipeline) VALUES (gen_random_uuid()::text, 'sums') RETURNING id),
            version AS (
                INSERT INTO weir_job_version (job_id, number, parallelism, state, settings, params)
                SELECT id, 1, 2, 'ready', %s::jsonb, %s::jsonb FROM job RETURNING id, job_id)
            INSERT INTO weir_run (job_id, version_id, parallelism, state)
            SELECT job_id, id, 2, %s FROM version RETURNING id
            """,
            str(settings).replace("'", '"'), params, state,
        )  # fmt: skip
        return int(rows[0]["id"])

    def run(self, run_id: int) -> dict[str, Any]:
        return self.sql("SELECT * FROM weir_run WHERE id = %s", run_id)[0]

    def attempts(self, run_id: int) -> list[dict[str, Any]]:
        return self.sql("SELECT * FROM weir_attempt WHERE run_id = %s ORDER BY token", run_id)

    # ------------------------------------------------------------ masters

    def wake(self, task: str, row_id: int, queue: str) -> None:
        # Named here, since Celery prefers CELERY_BROKER_URL of this process' environment to what an app is told.
        with Connection(self.redis_url) as broker:
            self._celery.send_task(f"console.tasks.{task}", args=(row_id,), queue=queue, connection=broker)

    def supervise(self, run_id: int) -> None:
        self.wake("supervise_run", run_id, "runs")

    def order(self, name: str, run_id: int, text: str = "") -> None:
        path = self.var / "orders" / f"{name}-{run_id}"
        path.with_suffix(".tmp").write_text(text)
        path.with_suffix(".tmp").rename(path)

    def master(self, run_id: int, after_token: int = 0, limit_s: float = 60.0) -> tuple[int, int, int]:
        """Token, pid and child's pid of the first master of the run with a token above `after_token`."""

        def started() -> tuple[int, int, int] | None:
            for path in sorted((self.var / "seen").glob(f"{run_id}-*.pids")):
                token = int(path.stem.partition("-")[2])
                if token > after_token:
                    pid, child = path.read_text().split()
                    return token, int(pid), int(child)
            return None

        master = until(started, limit_s)
        assert master is not None
        return master

    def saw_eof(self, run_id: int, token: int) -> bool:
        return (self.var / "seen" / f"{run_id}-{token}.eof").exists()


@contextlib.contextmanager
def world(var: Path) -> Iterator[World]:
    """Everything but workers on `runs` and `stages`."""
    var.mkdir(mode=0o711)
    place = World(var)
    try:
        place.migrate()
        with place.worker("housekeeping", "-c1", "-B", "-s", str(var / "beat")):
            yield place
    finally:
        place.stop_postgres()
        place.stop_redis()
