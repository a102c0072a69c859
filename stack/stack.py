"""The life of a stack: takes the lock of its `var`, starts all processes in order, restarts them, stops them all."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from stack import plan
from stack.processes import (
    SERVER_PROGRAMS,
    ProcessId,
    end_processes,
    load_identity,
    marked_processes,
    replace_text,
    save_identity,
    servers_in,
    session_members,
)
from stack.programs import ProgramMissing, require_programs
from stack.services import Service, ServiceFailed, free_port, postgres, redis_server
from stack.settings import (
    Settings,
    child_environment,
    load_or_create_secret,
    make_folders,
    require_free_space,
    stack_variables,
    write_env_file,
)
from stack.supervisor import EndRequested, StartFailed, Supervisor, rotate_logs

_START_S: Final = 90.0
_GRACE_S: Final = 5.0
_FIRST_HTTP_PORT: Final = 8000


class AlreadyUp(Exception):
    """Another supervisor holds the lock of this `var`."""


class Stack:
    """A stack that runs once."""

    def __init__(self, settings: Settings, say: Callable[[str], None], *, shows_password: bool = True) -> None:
        prepare(settings)
        self._settings = settings
        self._print_line = say
        self._shows_password = shows_password  #: False if the output goes to a log
        self._lock = _take_lock(settings)
        self._phase = "starting"
        self._message = ""
        self._is_status_written = True
        self._url = ""
        self._environment: dict[str, str] = {}
        self._supervisor = Supervisor(settings.run, settings.log, settings.restart_delay_s, self._on_change)

    # ------------------------------------------------------------ life

    def run(self) -> int:
        """Starts all processes, waits for a signal, and stops them. Returns 1 if a process did not start, else 0."""
        self._supervisor.listen()
        try:
            self._start()
            self._stay()
        except (StartFailed, ServiceFailed, ProgramMissing) as failure:
            self._write_status("failed", str(failure))
            self._print_line(str(failure))
            return 1
        except EndRequested:
            pass
        finally:
            self._stop()
        return 0

    def _start(self) -> None:
        settings = self._settings
        self._end_leftovers()
        rotate_logs(settings.log)
        database = settings.given_database or self._start_server(lambda port: postgres(settings.var, port), "postgres")
        broker = settings.given_broker or self._start_server(lambda port: redis_server(settings.var, port), "redis")
        with _listener(settings) as listener:
            port = listener.getsockname()[1]
            self._url = f"http://127.0.0.1:{port}/"
            _remember_port(settings, "http", port)
            variables = stack_variables(settings, database, broker, port)
            write_env_file(settings, variables)
            self._environment = child_environment(settings, variables)
            for step in plan.preparations(self._environment):
                self._supervisor.run_once(step)
            self._start_products(listener.detach())
        self._write_status("ready")
        self._print_line(self._greeting())

    def _start_products(self, listener: int) -> None:
        web = self._supervisor.start(plan.web(self._environment, listener, self._url))
        for spec in plan.workers(self._environment):
            self._supervisor.start(spec)
        self._supervisor.start(plan.beat(self._environment))
        for spec in plan.history(self._environment):
            self._supervisor.start(spec)
        self._supervisor.wait_ready(web, _START_S)

    def _stay(self) -> None:
        while not self._supervisor.is_ending:
            self._supervisor.wait(0.5)
            self._supervisor.check_children()
            rotate_logs(self._settings.log)
            if not self._is_status_written:
                self._write_status(self._phase)

    def _stop(self) -> None:
        """Stops beat and workers first, then web and servers; finally ends processes that outlived their parent."""
        if self._phase != "failed":
            self._write_status("stopping")
        supervisor = self._supervisor
        supervisor.is_ending = True
        if supervisor.children:
            self._print_line("stopping in order; a second Ctrl-C stops at once")
        servers = {"postgres", "redis", "web"}
        supervisor.stop([child for child in reversed(supervisor.children) if child.spec.name not in servers])
        end_processes(self._strays, _GRACE_S)
        supervisor.stop_all()
        sweep(self._settings)
        if self._phase != "failed":
            self._write_status("down")
        (self._settings.run / "supervisor.pid").unlink(missing_ok=True)
        self._lock.close()

    # ------------------------------------------------------------ parts

    def _start_server(self, make: Callable[[int], Service], name: str) -> str:
        """Starts a server and returns its URL. Prefers the last used port, so that addresses stay the same.

        If the server does not start, for example because its port is taken, two other ports are tried.
        """
        for last_try in (False, False, True):
            port = free_port(_remembered_port(self._settings, name))
            service = make(port)
            child = self._supervisor.start(service.spec)
            try:
                self._supervisor.wait_ready(child, _START_S, may_restart=False)
            except StartFailed:
                self._supervisor.forget(child)
                _remember_port(self._settings, name, 0)
                if last_try:
                    raise
                continue
            _remember_port(self._settings, name, port)
            return service.url
        raise AssertionError("unreachable: the last try returns or raises")

    def _end_leftovers(self) -> None:
        """Ends a killed supervisor's processes, which would conflict with new processes, and empties `var/spark`."""
        sweep(self._settings)
        shutil.rmtree(self._settings.var / "spark", ignore_errors=True)
        make_folders(self._settings)

    def _strays(self) -> list[ProcessId]:
        sessions = [c.popen.pid for c in self._supervisor.children if c.popen]
        members = {member for session in sessions for member in session_members(session)}
        return [process for process in marked_processes(self._settings.var) if process not in members]

    # ------------------------------------------------------------ status

    def _on_change(self, line: str) -> None:
        self._print_line(line)
        self._write_status(self._phase)

    def _write_status(self, phase: str, message: str = "") -> None:
        """Writes `status.json`. On a full disk the stack runs on, and the next round writes it again."""
        self._phase = phase
        self._message = message or self._message
        status = {
            "phase": phase,
            "message": self._message,
            "url": self._url,
            "user": self._settings.admin_user,
            "processes": self._supervisor.report(),
        }
        was_written = self._is_status_written
        try:
            replace_text(self._settings.run / "status.json", json.dumps(status, indent=1))
        except OSError as error:
            self._is_status_written = False
            if was_written:
                self._print_line(f"the status cannot be written, and the stack runs on: {error}")
        else:
            self._is_status_written = True

    def _greeting(self) -> str:
        return greeting(self._settings, self._url) if self._shows_password else f"ready at {self._url}"


def prepare(settings: Settings) -> None:
    """Creates the folders. Raises ProgramMissing or DiskFull if a start must fail."""
    require_programs(os.environ, database=not settings.given_database, broker=not settings.given_broker)
    require_free_space(settings)
    make_folders(settings)


def greeting(settings: Settings, url: str) -> str:
    password = load_or_create_secret(settings.run / "password")
    return f"\n  console   {url}\n  user      {settings.admin_user}\n  password  {password}\n"


def sweep(settings: Settings) -> int:
    """Ends every process of this `var` and returns their number.

    Processes are found by mark, by recorded identity, and servers by their working folder. Servers end last.
    """
    records = [path for path in settings.run.glob("*.pid") if path.name != "supervisor.pid"]

    def remaining() -> list[ProcessId]:
        recorded = [process for path in records if (process := load_identity(path))]
        servers = [process for name in ("pg", "redis") for process in servers_in(settings.var / name)]
        processes = {*recorded, *servers, *marked_processes(settings.var)}
        return [process for process in processes if process.pid != os.getpid()]

    count = end_processes(lambda: [p for p in remaining() if not _is_server(p)], _GRACE_S)
    count += end_processes(remaining, _GRACE_S, first=signal.SIGINT)
    for path in records:
        path.unlink(missing_ok=True)
    return count


def _is_server(process: ProcessId) -> bool:
    """Whether the process is Postgres or Redis. Servers end last, so that other processes can record their end."""
    try:
        name = Path(f"/proc/{process.pid}/exe").readlink().name
    except OSError:
        return False
    return name in SERVER_PROGRAMS


def _take_lock(settings: Settings) -> IO[str]:
    """Takes the lock of `var`, which the kernel releases when this process dies. Raises AlreadyUp."""
    lock = (settings.run / "supervisor.lock").open("w", encoding="ascii")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise AlreadyUp from None
    this = ProcessId.of(os.getpid())
    assert this is not None
    save_identity(settings.run / "supervisor.pid", this)
    return lock


def _listener(settings: Settings) -> socket.socket:
    """A listening socket at the set port; if none is set, at the last used port or the first free port from 8000 on."""
    ports = [settings.http_port] if settings.http_port else [
        *filter(None, [_remembered_port(settings, "http")]), *range(_FIRST_HTTP_PORT, _FIRST_HTTP_PORT + 100),
    ]  # fmt: skip
    for port in ports:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(128)
        except OSError:
            listener.close()
            continue
        return listener
    raise StartFailed(f"port {ports[0]} is taken: set WEIR_HTTP_PORT to another port")


def _remembered_port(settings: Settings, name: str) -> int:
    try:
        return int(json.loads((settings.run / "ports.json").read_text(encoding="ascii")).get(name, 0))
    except (OSError, ValueError):
        return 0


def _remember_port(settings: Settings, name: str, port: int) -> None:
    path = settings.run / "ports.json"
    ports = {n: _remembered_port(settings, n) for n in ("postgres", "redis", "http")}
    path.write_text(json.dumps({**ports, name: port}), encoding="ascii")


def print_line(line: str) -> None:
    """Prints a line. It is lost if the output is a file on a full disk, or a closed pipe."""
    with suppress(OSError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
