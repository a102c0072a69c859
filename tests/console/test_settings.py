"""A console that is set up wrongly does not start, and says in one line what is wrong."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.hashers import make_password
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

ROOT = Path(__file__).parents[2]
GOOD = {
    "DATABASE_URL": "postgresql://weir@/weir?host=/run/pg",
    "CELERY_BROKER_URL": "redis://localhost:1/0",
    "WEIR_VAR": "/nowhere",
    "DJANGO_SECRET_KEY": "x",
}
SETTINGS = ROOT / "console" / "settings.py"


def read(**changes: str | None) -> dict[str, Any]:
    """The settings, read anew in this environment and nothing else."""
    environment = {"PATH": os.environ["PATH"], **GOOD, **changes}
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - environment.keys():
            patch.delenv(name)
        for name, value in environment.items():
            patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
        return runpy.run_path(str(SETTINGS))


def test_a_process_ends_with_one_line() -> None:
    environment = {"PATH": os.environ["PATH"], **GOOD, "DATABASE_URL": ""}
    command = [sys.executable, "-c", "import console.settings"]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode != 0
    assert "DATABASE_URL is not set" in process.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", sorted(GOOD))
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_variable_is_named(name: str, value: str | None) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"{name} is not set"):
        read(**{name: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"DATABASE_URL": "sqlite:///db"}, "DATABASE_URL must begin with postgresql://"),
        ({"DATABASE_URL": "postgresql://host/db?sslmod=1"}, "DATABASE_URL is not a Postgres URL"),
        ({"DATABASE_URL": "postgresql://host"}, "DATABASE_URL names no database"),
        ({"DJANGO_DEBUG": "yes please"}, "DJANGO_DEBUG must be 0 or 1"),
        ({"WEIR_OIDC_ISSUER": "http://id.example.org"}, "WEIR_OIDC_ISSUER must begin with https://"),
        ({"WEIR_OIDC_ISSUER": "http://localhost:1@evil.example"}, "WEIR_OIDC_ISSUER must begin with https://"),
        ({"WEIR_OIDC_ISSUER": "https://a@b"}, "WEIR_OIDC_ISSUER must have neither user, query nor fragment"),
        ({"WEIR_OIDC_ISSUER": "https://[a"}, "WEIR_OIDC_ISSUER is no URL"),
        ({"WEIR_OIDC_SCOPE": "email"}, "WEIR_OIDC_SCOPE must hold openid"),
        ({"WEIR_OIDC_ISSUER": "http://localhost.evil"}, "WEIR_OIDC_ISSUER must begin with https://"),
        ({"WEIR_OIDC_ISSUER": "https://id.example.org"}, "WEIR_OIDC_CLIENT_ID is not set"),
        ({"WEIR_NUM_PROXIES": "-1"}, "WEIR_NUM_PROXIES must be a whole number"),
        ({"WEIR_STORAGE": "ftp://host/state"}, "WEIR_STORAGE: ftp://host/state is no storage for checkpoints"),
        ({"WEIR_SAVEPOINT_ROOTS": "/a:b"}, "WEIR_SAVEPOINT_ROOTS must hold absolute paths and URIs, not 'b'"),
    ],
)
def test_a_malformed_variable_is_named(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=re.escape(message)):
        read(**changes)


def test_jobs_may_use_the_data_folder_alone_unless_told_otherwise() -> None:
    assert [*map(str, read()["WEIR_DATA_ROOTS"])] == ["/nowhere/data", "/nowhere/demo"]
    assert [*map(str, read(WEIR_DATA_ROOTS="/a:/b")["WEIR_DATA_ROOTS"])] == ["/a", "/b"]


def test_browsers_use_https_for_a_year_only_if_the_console_does() -> None:
    over_http, over_https = read(), read(DJANGO_HTTPS="1")
    assert (over_http["SECURE_HSTS_SECONDS"], over_http["SESSION_COOKIE_SECURE"]) == (0, False)
    assert (over_https["SECURE_HSTS_SECONDS"], over_https["SESSION_COOKIE_SECURE"]) == (365 * 24 * 3600, True)
    assert "SECURE_HSTS_INCLUDE_SUBDOMAINS" not in over_https


def test_passwords_are_hashed_by_argon2() -> None:
    with override_settings(PASSWORD_HASHERS=read()["PASSWORD_HASHERS"]):
        assert make_password("a long enough one").startswith("argon2$argon2id$v=19$m=19456,t=2,p=1$")


def test_two_checkouts_on_one_machine_have_cookies_of_their_own() -> None:
    first, second, other = (
        [read(WEIR_VAR=var)[name] for name in ("SESSION_COOKIE_NAME", "CSRF_COOKIE_NAME")]
        for var in ("/one/var", "/one/var", "/other/var")
    )
    assert first == second
    assert len({*first, *other}) == 4


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
    database = read(DATABASE_URL=url)["DATABASES"]["default"]
    assert {name: database[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, ["/nowhere/storage"]), ({"WEIR_SAVEPOINT_ROOTS": "/a:s3://bucket/b:/c d"}, ["/a", "s3://bucket/b", "/c d"])],
)
def test_savepoints_are_read_in_storage_only_unless_more_is_allowed(
    changes: dict[str, str], expected: list[str]
) -> None:
    assert [str(root) for root in read(**changes)["WEIR_SAVEPOINT_ROOTS"]] == expected


def test_the_web_process_exempts_its_modules_from_collections_of_garbage() -> None:
    program = "import gc, console.wsgi; print(gc.get_freeze_count(), len(gc.get_objects()))"
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={"PATH": os.environ["PATH"], **GOOD}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    frozen, objects = map(int, process.stdout.split())
    assert frozen > 50_000
    assert objects < 5_000


def test_answers_of_many_objects_cause_no_full_collection_in_the_web_process() -> None:
    program = (
        "import gc, console.wsgi; full = []\n"
        "gc.callbacks.append(lambda phase, info: full.append(phase) if info['generation'] == 2 else None)\n"
        "for _ in range(100):\n    answer = [[number] for number in range(10_000)]; del answer\n"
        "print(len(full))"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={"PATH": os.environ["PATH"], **GOOD}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert int(process.stdout) == 0
