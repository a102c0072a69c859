"""Which Python and which servers, for every kind of machine (the pure part of the launcher)."""

from __future__ import annotations

from itertools import product

import pytest

from stack.launch.choice import Interpreter, Machine, Refuse, Use, choose

OLD = Interpreter("/usr/bin/python3.9", (3, 9), True)
FITTING = Interpreter("/usr/bin/python3.11", (3, 11), True)
FITTING_TOO = Interpreter("/opt/python3.12", (3, 12), True)
WITHOUT_VENV = Interpreter("/usr/bin/python3.12", (3, 12), False)
NEWER = Interpreter("/usr/bin/python3.13", (3, 13), True)


def machine(
    *interpreters: Interpreter,
    has_wheels: bool = True,
    has_urls: bool = False,
    postgres: str | None = None,
    redis: str | None = None,
    can_install: bool = False,
) -> Machine:
    return Machine(interpreters, has_wheels, has_urls, postgres, redis, can_install)


def test_takes_the_first_interpreter_with_embedded_servers() -> None:
    assert choose(machine(FITTING_TOO, FITTING)) == Use(FITTING_TOO, "embedded")


def test_finds_an_older_interpreter_behind_a_newer_one() -> None:
    assert choose(machine(NEWER, FITTING, postgres="/pg", redis="/redis")) == Use(FITTING, "embedded")


def test_a_newer_python_alone_uses_installed_servers() -> None:
    assert choose(machine(NEWER, postgres="/pg", redis="/redis")) == Use(NEWER, "system")


def test_a_newer_python_alone_uses_servers_that_are_given() -> None:
    assert choose(machine(NEWER, has_urls=True)) == Use(NEWER, "given")


@pytest.mark.parametrize(
    ("postgres", "redis", "wanted", "unwanted"),
    [
        (None, None, "apt-get install postgresql redis-server)", "nothing"),
        ("/pg", None, "apt-get install redis-server)", "postgresql"),
        (None, "/redis", "apt-get install postgresql)", "redis-server"),
    ],
)
def test_a_newer_python_without_servers_says_what_to_install(
    postgres: str | None, redis: str | None, wanted: str, unwanted: str
) -> None:
    refusal = choose(machine(NEWER, postgres=postgres, redis=redis))

    assert isinstance(refusal, Refuse)
    assert "Python 3.13" in refusal.advice
    assert wanted in refusal.advice
    assert unwanted not in refusal.advice
    assert "\n" not in refusal.advice


def test_a_processor_without_wheels_counts_as_a_newer_python() -> None:
    assert choose(machine(FITTING, has_wheels=False, postgres="/pg", redis="/redis")) == Use(FITTING, "system")
    assert isinstance(choose(machine(FITTING, has_wheels=False)), Refuse)


def test_prefers_an_interpreter_that_can_make_environments() -> None:
    assert choose(machine(WITHOUT_VENV, FITTING, can_install=True)) == Use(FITTING, "embedded")


def test_root_installs_the_missing_venv_module_others_are_told() -> None:
    assert choose(machine(WITHOUT_VENV, can_install=True)) == Use(WITHOUT_VENV, "embedded", ("python3.12-venv",))

    refusal = choose(machine(WITHOUT_VENV))
    assert isinstance(refusal, Refuse)
    assert "apt-get install python3.12-venv" in refusal.advice


@pytest.mark.parametrize("found", [(), (OLD,)])
def test_without_a_recent_python_says_which_to_install(found: tuple[Interpreter, ...]) -> None:
    refusal = choose(machine(*found))

    assert isinstance(refusal, Refuse)
    assert "Weir needs Python 3.11 or 3.12" in refusal.advice
    assert ("3.9" in refusal.advice) == bool(found)


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
    ]
    for found, (wheels, urls, pg, redis, root) in product(sets, product((False, True), repeat=5)):
        looked = Machine(found, wheels, urls, "/pg" if pg else None, "/redis" if redis else None, root)
        choice = choose(looked)
        if isinstance(choice, Refuse):
            assert choice.advice
            continue
        assert choice.interpreter in found
        assert choice.interpreter.version >= (3, 11)
        assert choice.interpreter.has_venv or (root and choice.packages)
        assert {
            "embedded": wheels and choice.interpreter.version < (3, 13),
            "system": pg and redis,
            "given": urls,
        }[choice.services]
