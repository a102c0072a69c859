"""Which Python and which servers, for every kind of machine (the pure part of the launcher)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from stack.launch.choice import Interpreter, Machine, Refuse, Use, choose

OLD = Interpreter("/usr/bin/python3.9", (3, 9), True)
FITTING = Interpreter("/usr/bin/python3.11", (3, 11), True)
FITTING_TOO = Interpreter("/opt/python3.12", (3, 12), True)
WITHOUT_VENV = Interpreter("/usr/bin/python3.12", (3, 12), False)
TOO_NEW = Interpreter("/opt/python3.15", (3, 15), True)
NEWER = Interpreter("/usr/bin/python3.13", (3, 13), True)


def machine(
    *interpreters: Interpreter,
    has_wheels: bool = True,
    has_urls: bool = False,
    postgres: str | None = None,
    redis: str | None = None,
    has_java: bool = True,
    can_install: bool = False,
) -> Machine:
    return Machine(interpreters, has_wheels, has_urls, postgres, redis, has_java, can_install)


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13), (3, 14)])
@pytest.mark.parametrize("can_install", [False, True])
def test_every_supported_python_has_embedded_servers(version: tuple[int, int], can_install: bool) -> None:
    """Debian 13 has 3.13 and Ubuntu 26.04 has 3.14: neither root nor an ordinary user needs anything installed."""
    only = Interpreter("/usr/bin/python3", version, True)
    assert choose(machine(only, can_install=can_install)) == Use(only, "embedded")


def test_takes_the_first_fitting_interpreter() -> None:
    assert choose(machine(NEWER, FITTING, postgres="/pg", redis="/redis")) == Use(NEWER, "embedded")
    assert choose(machine(OLD, TOO_NEW, FITTING_TOO, FITTING)) == Use(FITTING_TOO, "embedded")


def test_without_wheels_given_servers_come_first_then_installed_ones_then_apt() -> None:
    def bare(**changes: object) -> Machine:
        return replace(machine(FITTING, has_wheels=False), **changes)  # type: ignore[arg-type]

    assert choose(bare(has_urls=True, can_install=True)) == Use(FITTING, "given")
    assert choose(bare(postgres="/pg", redis="/redis", can_install=True)) == Use(FITTING, "system")
    assert choose(bare(can_install=True)) == Use(FITTING, "system", ("postgresql", "redis-server"))
    assert choose(bare(postgres="/pg", can_install=True)) == Use(FITTING, "system", ("redis-server",))


@pytest.mark.parametrize(
    ("postgres", "redis", "advice", "unwanted"),
    [
        (None, None, "apt-get install postgresql redis-server (or", "nothing"),
        ("/pg", None, "apt-get install redis-server (or", "postgresql"),
        (None, "/redis", "apt-get install postgresql (or", "redis-server"),
    ],
)
def test_an_ordinary_user_without_wheels_gets_one_sentence(
    postgres: str | None, redis: str | None, advice: str, unwanted: str
) -> None:
    refusal = choose(machine(FITTING, has_wheels=False, postgres=postgres, redis=redis))

    assert isinstance(refusal, Refuse)
    assert advice in refusal.advice
    assert unwanted not in refusal.advice
    assert "DATABASE_URL and CELERY_BROKER_URL" in refusal.advice
    assert "\n" not in refusal.advice


def test_prefers_an_interpreter_that_can_make_environments() -> None:
    assert choose(machine(WITHOUT_VENV, FITTING, can_install=True)) == Use(FITTING, "embedded")


def test_root_installs_the_missing_venv_module_others_are_told() -> None:
    assert choose(machine(WITHOUT_VENV, can_install=True)) == Use(WITHOUT_VENV, "embedded", ("python3.12-venv",))

    refusal = choose(machine(WITHOUT_VENV))
    assert isinstance(refusal, Refuse)
    assert "apt-get install python3.12-venv" in refusal.advice


def test_all_that_a_bare_machine_lacks_is_installed_at_once_or_named_in_one_sentence() -> None:
    bare = machine(WITHOUT_VENV, has_java=False)
    assert choose(replace(bare, can_install=True)) == Use(
        WITHOUT_VENV, "embedded", ("python3.12-venv", "default-jre-headless")
    )

    refusal = choose(bare)
    assert isinstance(refusal, Refuse)
    assert refusal.advice == (
        "/usr/bin/python3.12 cannot create virtual environments and there is no Java 17 or newer for Spark: "
        "as root, apt-get install python3.12-venv default-jre-headless"
    )


@pytest.mark.parametrize("interpreters", [(), (OLD,), (TOO_NEW,)])
def test_without_a_supported_python_says_which_to_install(interpreters: tuple[Interpreter, ...]) -> None:
    refusal = choose(machine(*interpreters))

    assert isinstance(refusal, Refuse)
    assert "Weir needs Python 3.11 to 3.14" in refusal.advice
    assert ", ".join("{}.{}".format(*interpreter.version) for interpreter in interpreters) in refusal.advice


def test_every_machine_gets_an_answer_that_it_can_carry_out() -> None:
    """The whole product of what may be found: never too old an interpreter, never servers that are not there."""
    sets: list[tuple[Interpreter, ...]] = [
        (),
        (OLD,),
        (NEWER,),
        (WITHOUT_VENV,),
        (FITTING,),
        (NEWER, OLD),
        (NEWER, WITHOUT_VENV),
        (OLD, FITTING),
        (TOO_NEW,),
        (TOO_NEW, WITHOUT_VENV),
    ]
    for interpreters, (wheels, urls, pg, redis, jre, root) in product(sets, product((False, True), repeat=6)):
        looked = Machine(interpreters, wheels, urls, "/pg" if pg else None, "/redis" if redis else None, jre, root)
        choice = choose(looked)
        if isinstance(choice, Refuse):
            assert choice.advice
            continue
        assert choice.interpreter in interpreters
        assert (3, 11) <= choice.interpreter.version <= (3, 14)
        assert choice.interpreter.has_venv or (root and choice.packages)
        assert jre or "default-jre-headless" in choice.packages
        assert {
            "embedded": wheels,
            "system": (pg and redis) or (root and choice.packages),
            "given": urls,
        }[choice.services]
