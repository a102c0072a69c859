"""Which Python and which servers to use, as a pure function of what the machine offers.

It decides; it looks at nothing itself (`machine.py` does) and installs nothing (`apt.py`, `venv.py` do).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple, Union

OLDEST = (3, 11)
EMBEDDED = ((3, 11), (3, 12))  #: the wheels that carry Postgres and Redis end here
WANTED = "Python 3.11 or 3.12"


@dataclass(frozen=True)
class Interpreter:
    """A Python found on this machine, in order of preference."""

    path: str
    version: Tuple[int, int]
    has_venv: bool  #: `ensurepip` is there; Debian ships it apart, as python3.x-venv


@dataclass(frozen=True)
class Machine:
    """What was found."""

    interpreters: Tuple[Interpreter, ...]
    has_wheels: bool  #: embedded wheels exist for this system and processor
    has_urls: bool  #: DATABASE_URL and CELERY_BROKER_URL name servers that somebody else runs
    postgres: Optional[str]  #: folder of installed Postgres binaries
    redis: Optional[str]  #: an installed redis-server
    can_install: bool  #: root, and apt-get is there


@dataclass(frozen=True)
class Use:
    """Go on with this interpreter. `packages` must be installed through apt first."""

    interpreter: Interpreter
    services: str  #: embedded, system or given
    packages: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Refuse:
    """Nothing fits; `advice` is the one line to show."""

    advice: str


Choice = Union[Use, Refuse]


def choose(machine: Machine) -> Choice:
    """Prefers an interpreter with embedded servers, then any new enough one with servers from elsewhere."""
    recent = [i for i in machine.interpreters if i.version >= OLDEST]
    embedded = [i for i in recent if i.version in EMBEDDED] if machine.has_wheels else []
    if embedded:
        return _with_venv(embedded, "embedded", machine.can_install)
    if not recent:
        return Refuse(_no_python(machine))
    if machine.has_urls:
        return _with_venv(recent, "given", machine.can_install)
    if machine.postgres and machine.redis:
        return _with_venv(recent, "system", machine.can_install)
    return Refuse(_no_servers(machine, recent[0]))


def _with_venv(fitting: list[Interpreter], services: str, can_install: bool) -> Choice:
    for interpreter in fitting:
        if interpreter.has_venv:
            return Use(interpreter, services)
    first = fitting[0]
    package = "python{}.{}-venv".format(*first.version)
    if can_install:
        return Use(first, services, (package,))
    return Refuse(f"{first.path} cannot make virtual environments. Install its module: apt-get install {package}")


def _no_python(machine: Machine) -> str:
    found = ", ".join("{}.{}".format(*i.version) for i in machine.interpreters) or "none"
    return f"Weir needs {WANTED}; found: {found}. Install one: apt-get install python3.11 python3.11-venv"


def _no_servers(machine: Machine, interpreter: Interpreter) -> str:
    missing = [name for name, found in (("postgresql", machine.postgres), ("redis-server", machine.redis)) if not found]
    version = "{}.{}".format(*interpreter.version)
    return (
        f"Python {version} on this machine has no embedded Postgres and Redis. Install {WANTED}, "
        f"or the servers (apt-get install {' '.join(missing)}), or set DATABASE_URL and CELERY_BROKER_URL"
    )
