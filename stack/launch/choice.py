"""The choice of Python and servers as a pure function of the machine's properties.

`machine.py` inspects the machine; `apt.py` and `venv.py` install.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple, Union

OLDEST_PYTHON = (3, 11)
NEWEST_PYTHON = (3, 14)  #: the newest version for which the pins of constraints.txt have wheels
PYTHON_RANGE = "Python 3.11 to 3.14"


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter of this machine."""

    path: str
    version: Tuple[int, int]
    has_venv: bool  #: has `ensurepip`, which Debian packages separately as python3.x-venv


@dataclass(frozen=True)
class Machine:
    """The properties of a machine."""

    interpreters: Tuple[Interpreter, ...]  #: in order of preference
    has_wheels: bool  #: embedded wheels exist for this system and processor
    has_urls: bool  #: DATABASE_URL and CELERY_BROKER_URL name external servers
    postgres: Optional[str]  #: folder of installed Postgres programs
    redis: Optional[str]  #: path of an installed redis-server
    has_java: bool  #: in a version that Spark accepts
    can_install: bool  #: the user is root and apt-get exists


@dataclass(frozen=True)
class Use:
    """The chosen interpreter and servers, usable once apt has installed `packages`."""

    interpreter: Interpreter
    services: str  #: embedded, system or given
    packages: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Refuse:
    """The machine is unsuitable; `advice` is the line to show."""

    advice: str


Choice = Union[Use, Refuse]


def choose(machine: Machine) -> Choice:
    """The first suitable interpreter, preferably with venv, and servers: embedded, else given, else installed."""
    fitting = [i for i in machine.interpreters if OLDEST_PYTHON <= i.version <= NEWEST_PYTHON]
    if not fitting:
        return Refuse(_no_python(machine))
    interpreter = next((i for i in fitting if i.has_venv), fitting[0])
    packages: Tuple[str, ...] = () if interpreter.has_venv else ("python{}.{}-venv".format(*interpreter.version),)
    packages += () if machine.has_java else ("default-jre-headless",)
    services = "embedded" if machine.has_wheels else "given" if machine.has_urls else "system"
    if services == "system":
        packages += () if machine.postgres else ("postgresql",)
        packages += () if machine.redis else ("redis-server",)
    if packages and not machine.can_install:
        return Refuse(_missing(interpreter, packages))
    return Use(interpreter, services, packages)


def _no_python(machine: Machine) -> str:
    versions = ", ".join("{}.{}".format(*i.version) for i in machine.interpreters) or "none"
    return f"Weir needs {PYTHON_RANGE}; found: {versions}. Install one: apt-get install python3 python3-venv"


def _missing(interpreter: Interpreter, packages: Tuple[str, ...]) -> str:
    reasons = []
    if not interpreter.has_venv:
        reasons.append(f"{interpreter.path} cannot create virtual environments")
    if "default-jre-headless" in packages:
        reasons.append("there is no Java 17 or newer for Spark")
    servers_are_missing = {"postgresql", "redis-server"} & set(packages)
    if servers_are_missing:
        reasons.append("there is no embedded Postgres and Redis for this system and processor")
    other = " (or, instead of servers, set DATABASE_URL and CELERY_BROKER_URL)" if servers_are_missing else ""
    return f"{' and '.join(reasons)}: as root, apt-get install {' '.join(packages)}{other}"
