"""Which Python and which servers to use, as a pure function of what the machine offers.

It decides; it looks at nothing itself (`machine.py` does) and installs nothing (`apt.py`, `venv.py` do).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple, Union

OLDEST = (3, 11)
NEWEST = (3, 14)  #: the pins of constraints.txt have wheels up to here
WANTED = "Python 3.11 to 3.14"


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
    has_java: bool  #: one that Spark accepts
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
    """The first fitting interpreter that can make environments; servers embedded, else given, else installed."""
    fitting = [i for i in machine.interpreters if OLDEST <= i.version <= NEWEST]
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
    found = ", ".join("{}.{}".format(*i.version) for i in machine.interpreters) or "none"
    return f"Weir needs {WANTED}; found: {found}. Install one: apt-get install python3 python3-venv"


def _missing(interpreter: Interpreter, packages: Tuple[str, ...]) -> str:
    """One sentence for somebody who may not install packages."""
    reasons = []
    if not interpreter.has_venv:
        reasons.append(f"{interpreter.path} cannot make virtual environments")
    if "default-jre-headless" in packages:
        reasons.append("there is no Java 17 or newer for Spark")
    servers_are_missing = {"postgresql", "redis-server"} & set(packages)
    if servers_are_missing:
        reasons.append("there is no embedded Postgres and Redis for this system and processor")
    other = " (or, instead of servers, set DATABASE_URL and CELERY_BROKER_URL)" if servers_are_missing else ""
    return f"{' and '.join(reasons)}: as root, apt-get install {' '.join(packages)}{other}"
