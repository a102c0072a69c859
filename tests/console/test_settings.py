"""A console that is set up wrongly does not start, and says in one line what is wrong."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOOD = {
    "DATABASE_URL": "postgresql://weir@/weir?host=/run/pg",
    "CELERY_BROKER_URL": "redis://localhost:1/0",
    "WEIR_VAR": "/nowhere",
    "DJANGO_SECRET_KEY": "x",
}
SHOW = """
from console.settings import DATABASES
print({name: DATABASES["default"][name] for name in ("NAME", "USER", "PASSWORD", "HOST", "PORT")})
"""


COOKIES = "from console.settings import *; print(SESSION_COOKIE_NAME, CSRF_COOKIE_NAME)"


def read(**changes: str | None) -> "subprocess.CompletedProcess[str]":
    return run(SHOW, changes)


def run(show: str, changes: Mapping[str, str | None]) -> "subprocess.CompletedProcess[str]":
    given = {**GOOD, **changes}
    environment = {"PATH": os.environ["PATH"], **{name: value for name, value in given.items() if value is not None}}
    return subprocess.run(
        [sys.executable, "-c", show], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", sorted(GOOD))
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_variable_is_named(name: str, value: str | None) -> None:
    said = read(**{name: value})
    assert said.returncode != 0
    assert f"{name} is not set" in said.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"DATABASE_URL": "sqlite:///db"}, "DATABASE_URL must begin with postgresql://"),
        ({"DATABASE_URL": "postgresql://host/db?sslmod=1"}, "DATABASE_URL is not a Postgres URL"),
        ({"DATABASE_URL": "postgresql://host"}, "DATABASE_URL names no database"),
        ({"DJANGO_DEBUG": "yes please"}, "DJANGO_DEBUG must be 0 or 1"),
        ({"WEIR_NUM_PROXIES": "-1"}, "WEIR_NUM_PROXIES must be a whole number"),
        ({"WEIR_SAVEPOINT_ROOTS": "/a:b"}, "WEIR_SAVEPOINT_ROOTS must hold absolute paths, not 'b'"),
    ],
)
def test_a_malformed_variable_is_named(changes: dict[str, str], message: str) -> None:
    said = read(**changes)
    assert said.returncode != 0
    assert message in said.stderr.splitlines()[-1]


def test_jobs_may_use_the_data_folder_alone_unless_told_otherwise() -> None:
    show = "from console.settings import *; print(*WEIR_DATA_ROOTS)"
    assert run(show, {}).stdout.split() == ["/nowhere/data", "/nowhere/demo"]
    assert run(show, {"WEIR_DATA_ROOTS": "/a:/b"}).stdout.split() == ["/a", "/b"]


def test_two_checkouts_on_one_machine_have_cookies_of_their_own() -> None:
    one, again, other = (
        run(COOKIES, {"WEIR_VAR": var}).stdout.split() for var in ("/one/var", "/one/var", "/other/var")
    )
    assert one == again
    assert len({*one, *other}) == 4


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgresql://weir@/weir?host=/run/pg",
            {"NAME": "weir", "USER": "weir", "PASSWORD": "", "HOST": "/run/pg", "PORT": ""},
        ),
        (
            "postgresql://weir@%2Frun%2Fpg:5433/weir",
            {"NAME": "weir", "USER": "weir", "PASSWORD": "", "HOST": "/run/pg", "PORT": "5433"},
        ),
        (
            "postgres://weir:p%40ss@db.example:6432/weir",
            {"NAME": "weir", "USER": "weir", "PASSWORD": "p@ss", "HOST": "db.example", "PORT": "6432"},
        ),
    ],
)
def test_sockets_and_tcp_are_read_from_one_url(url: str, expected: dict[str, str]) -> None:
    said = read(DATABASE_URL=url)
    assert said.stdout.strip() == str(expected), said.stderr


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "['/nowhere/storage']"), ({"WEIR_SAVEPOINT_ROOTS": "/a:/b c"}, "['/a', '/b c']")]
)
def test_savepoints_are_read_in_storage_only_unless_more_is_allowed(given: dict[str, str], expected: str) -> None:
    said = run("from console.settings import *; print([str(root) for root in WEIR_SAVEPOINT_ROOTS])", given)
    assert said.stdout.strip() == expected
