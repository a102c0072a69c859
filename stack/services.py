"""Postgres and Redis as foreground processes: prepared folders, a command line, and a readiness check.

The supervisor runs them for `make up`. `start_postgres` and `start_redis` run a server for a `with` block.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
import redis

from stack.folders import Account, identity, private_folder, service_account, socket_folder, write_private
from stack.processes import ProcessId, die_with_parent, end_processes, servers_in
from stack.programs import postgres_programs, reachable_redis
from stack.supervisor import ProcessSpec, spawn, tail

_FIRST_PORT: Final = 20_000  #: below the ephemeral ports of outgoing connections,
_LAST_PORT: Final = 32_000  #: so that a port stays free while its server restarts
_READY_S: Final = 60.0
_OTHER_SERVER_GRACE_S: Final = 10.0  #: a Postgres that has not ended by then is killed, and recovers at its next start


class ServiceFailed(Exception):
    """A server did not start; the text ends with its last log lines."""


_ENVIRONMENT: Final = {"LANG": "C", "LC_ALL": "C", "PATH": os.defpath}


@dataclass(frozen=True, slots=True)
class Service:
    """A server that is prepared to start in the foreground."""

    spec: ProcessSpec
    url: str


def free_port(preferred: int = 0) -> int:
    """`preferred` if it is free, else a random free port of the loopback interface."""
    candidates = [preferred] if preferred else []
    candidates += random.SystemRandom().sample(range(_FIRST_PORT, _LAST_PORT), 200)
    for port in candidates:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise ServiceFailed(f"no free port between {_FIRST_PORT} and {_LAST_PORT}")


# ---------------------------------------------------------------- Postgres


def postgres(home: Path, port: int, *, durable: bool = True, password: str = "", rights: Sequence[str] = ()) -> Service:
    """Prepares a cluster with an empty database `weir` under `home/pg`; keeps an existing cluster.

    Args:
        durable: False skips fsync. The cluster survives a killed process, but not a crash of the machine.
        password: of the role `weir` in a new cluster; random by default.
        rights: of the role `weir` in a new cluster: CREATEDB and REPLICATION, as tests need.
    """
    account = service_account()
    programs = postgres_programs(home, account)
    _check_version(home / "pg/data", programs / "postgres")
    folder = private_folder(home / "pg", account)
    if not (folder / "data").exists():
        _make_cluster(folder, programs, account, password or secrets.token_hex(16), rights)
    _drop_foreign_lock(folder / "data/postmaster.pid")
    secret = (folder / "password").read_text(encoding="ascii")
    url = f"postgresql://weir:{secret}@127.0.0.1:{port}/weir"
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": str(socket_folder(home / "run/pg", account)),
        "max_connections": "200",
        "fsync": "on" if durable else "off",
        "synchronous_commit": "on" if durable else "off",
        "full_page_writes": "on" if durable else "off",
        "wal_level": "logical",  # for change data capture
        "max_prepared_transactions": "50",
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    argv = (str(programs / "postgres"), "-D", str(folder / "data"), *options)
    spec = ProcessSpec(
        name="postgres", argv=argv, environment=_ENVIRONMENT, folder=folder, account=account,
        is_ready=lambda: _answers_sql(url), before_restart=lambda: _end_other_servers(folder),
        stop_signal=signal.SIGINT, orphan_signal=signal.SIGINT,
    )  # fmt: skip
    return Service(spec, url)


def _end_other_servers(folder: Path) -> None:
    """Ends a Postgres that was started by hand (`pg_ctl restart`): it holds the lock of the data."""
    end_processes(lambda: servers_in(folder), grace_s=_OTHER_SERVER_GRACE_S, first=signal.SIGINT)


def _check_version(data: Path, program: Path) -> None:
    """Raises ServiceFailed, without touching `data`, if another major version of Postgres wrote it."""
    try:
        written_by = (data / "PG_VERSION").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return
    says = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"\) (\d+)", says)
    if match is None:
        raise ServiceFailed(f"{program} --version printed {says!r}, which names no version")
    if match.group(1) != written_by:
        raise ServiceFailed(
            f"{data} was written by Postgres {written_by}, and Postgres {match.group(1)} cannot open it: remove it "
            f"with all other data of this checkout (`make clean`), or serve it with your own Postgres {written_by} and "
            "name that server in DATABASE_URL"
        )


def _make_cluster(folder: Path, programs: Path, account: Account | None, password: str, rights: Sequence[str]) -> None:
    """Creates a cluster under a temporary name and renames it, so that an incomplete cluster is never used.

    The console's role owns its database but is not a superuser, which could read and write files and run programs.
    """
    unfinished = folder / "data.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    write_private(folder / "password", password, account)
    write_private(folder / "superuser", secrets.token_hex(16), account)
    initdb = [str(programs / "initdb"), "-D", str(unfinished), "-U", "postgres", f"--pwfile={folder / 'superuser'}"]
    _run_as(
        account, [*initdb, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
    )
    single = [str(programs / "postgres"), "--single", "-D", str(unfinished), "postgres"]
    secret = password.replace("'", "''")
    role = f"CREATE ROLE weir LOGIN NOSUPERUSER NOCREATEROLE {' '.join(rights)} PASSWORD '{secret}'\n"
    _run_as(account, single, role + "CREATE DATABASE weir OWNER weir\n")
    unfinished.rename(folder / "data")


def _run_as(account: Account | None, argv: list[str], text: str = "") -> None:
    process = subprocess.run(
        argv,
        input=text, capture_output=True, text=True, check=False, cwd="/", env={"LC_ALL": "C", "PATH": os.defpath},
        preexec_fn=die_with_parent(signal.SIGKILL), **identity(account),
    )  # fmt: skip
    if process.returncode != 0:
        raise ServiceFailed(
            f"{Path(argv[0]).name} failed ({process.returncode}): {(process.stderr or process.stdout)[-2000:]}"
        )


def _drop_foreign_lock(lock: Path) -> None:
    """Removes the lock of a killed Postgres if the pid in it now belongs to another program."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(lock.read_text(encoding="ascii", errors="replace").split("\n", 1)[0])
        if Path(f"/proc/{pid}/comm").exists() and Path(f"/proc/{pid}/comm").read_text().strip() != "postgres":
            lock.unlink()


def _answers_sql(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=2) as connection:
            return connection.execute("select 1").fetchone() == (1,)
    except psycopg.Error:
        return False


# ---------------------------------------------------------------- Redis


def redis_server(home: Path, port: int, *, password: str = "") -> Service:
    """A broker without persistence: every message is only a wake-up for rows in Postgres."""
    account = service_account()
    program = reachable_redis(home, account)
    folder = private_folder(home / "redis", account)
    secret = password or secrets.token_hex(16)
    lines = [
        "bind 127.0.0.1", f"port {port}", "daemonize no", f"dir {folder}", 'save ""', "appendonly no",
        f"requirepass {secret}", "databases 16", "loglevel notice",
    ]  # fmt: skip
    write_private(folder / "redis.conf", "\n".join(lines) + "\n", account)
    url = f"redis://:{secret}@127.0.0.1:{port}/0"
    argv = (str(program), str(folder / "redis.conf"))
    spec = ProcessSpec(
        name="redis", argv=argv, environment=_ENVIRONMENT, folder=folder, account=account,
        is_ready=lambda: _answers_ping(url),
    )  # fmt: skip
    return Service(spec, url)


def _answers_ping(url: str) -> bool:
    client = redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)
    try:
        return bool(client.ping())
    except (redis.RedisError, OSError):
        return False
    finally:
        client.close()


# ---------------------------------------------------------------- running a server


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that is ready."""

    url: str
    process: ProcessId
    log: Path


@contextlib.contextmanager
def start_postgres(
    folder: Path, *, port: int = 0, durable: bool = False, password: str = "", rights: Sequence[str] = ()
) -> Iterator[RunningServer]:
    """Runs a Postgres with an empty database `weir` for the block; data, socket and log are under `folder`.

    If this process is killed, the kernel ends the server.
    """

    def make(server_port: int) -> Service:
        return postgres(folder, server_port, durable=durable, password=password, rights=rights)

    with _run_server(make, folder, port) as running:
        yield running


@contextlib.contextmanager
def start_redis(folder: Path, *, port: int = 0, password: str = "") -> Iterator[RunningServer]:
    """Runs a Redis for the block; data and log are under `folder`. If this process dies, the kernel ends the server."""
    with _run_server(lambda server_port: redis_server(folder, server_port, password=password), folder, port) as running:
        yield running


@contextlib.contextmanager
def _run_server(make: Callable[[int], Service], folder: Path, port: int) -> Iterator[RunningServer]:
    service, child = _start_somewhere(make, folder, port)
    process = ProcessId.of(child.pid)
    assert process is not None
    try:
        yield RunningServer(service.url, process, _log_of(service, folder))
    finally:
        child.send_signal(service.spec.stop_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=10)
        child.kill()
        child.wait()
        end_processes(lambda: servers_in(service.spec.folder), grace_s=2)


def _start_somewhere(
    make: Callable[[int], Service], folder: Path, port: int
) -> tuple[Service, subprocess.Popen[bytes]]:
    """Starts a server, on another free port if another process takes the port first."""
    for last_try in (False, False, True):
        service = make(port or free_port())
        log = _log_of(service, folder)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            child = spawn(service.spec, sink)
        if _wait_ready(service.spec, child):
            return service, child
        child.kill()
        child.wait()
        if port or last_try:
            break
    raise ServiceFailed(f"{service.spec.name} did not start:\n{tail(log)}")


def _wait_ready(spec: ProcessSpec, child: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _READY_S
    while child.poll() is None and time.monotonic() < deadline:
        if spec.is_ready is None or spec.is_ready():
            return True
        time.sleep(0.05)
    return False


def _log_of(service: Service, folder: Path) -> Path:
    return folder / "log" / f"{service.spec.name}.log"
