"""The two commands on a bare Debian: containers that hold `make`, `python3`, and what the case names."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.podman import Podman, checkout, pip_mounts, podman, session_mark, unique

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(2400)]

#: On a busy machine the demo also fails because a restart took longer than it promises; here its result counts.
PROOF = """make demo EXIT=1 | tee /tmp/printed
grep -qE "^demo: (exact, 336776 records|the result is exact, but)" /tmp/printed"""
BARE = ("ca-certificates", "make", "python3")
USER = "operator-of-weir"


@pytest.fixture(scope="module")
def engine() -> Iterator[Podman]:
    with podman() as engine:
        yield engine


@pytest.fixture(scope="module")
def trixie(engine: Podman) -> str:
    """Debian 13, Python 3.13."""
    engine.bootstrap("trixie", BARE, "localhost/trixie:bare")
    return "localhost/trixie:bare"


@pytest.fixture(scope="module")
def forky(engine: Podman) -> str:
    """Debian testing, Python 3.14."""
    engine.bootstrap("forky", BARE, "localhost/forky:bare")
    return "localhost/forky:bare"


@pytest.fixture(scope="module")
def bookworm(engine: Podman) -> str:
    """Debian 12, Python 3.11, with what an administrator installs for users who may not."""
    engine.bootstrap("bookworm", (*BARE, "python3-venv", "default-jre-headless"), "localhost/bookworm:prepared")
    return "localhost/bookworm:prepared"


def run(engine: Podman, image: str, source: Path, script: str) -> str:
    """Everything that the script printed. Its failure shows that, with the logs of the stack."""
    logs = "status=$?; [ $status = 0 ] || tail -n 40 /weir/var/log/*.log; exit $status"
    return engine(
        "run", "--rm", "--name", unique("weir-bare"), "--network", "host", *pip_mounts(), *session_mark(),
        "-v", f"{source}:/weir", "-w", "/weir", image, "sh", "-c", f"( {script} ); {logs}", timeout_s=2000,
    )  # fmt: skip


def as_user(command: str) -> str:
    """`command` by somebody without rights who owns the checkout."""
    make_user = f"useradd --create-home {USER} && chown -R {USER} /weir"
    return f"{make_user} && HOME=/home/{USER} runuser -u {USER} -- {command}"


def test_make_demo_is_exact_for_root_on_debian_13(engine: Podman, trixie: str, tmp_path: Path) -> None:
    """S0-01: from nothing but make and python3 to the proof, through apt and pip."""
    began = time.monotonic()
    printed = run(engine, trixie, checkout(tmp_path), PROOF)
    sys.stdout.write(f"{printed}\nthe whole of it took {time.monotonic() - began:.0f} s\n")
    assert "Python 3.13" in printed
    assert "embedded Postgres and Redis" in printed


def test_make_demo_is_exact_for_root_on_debian_testing(engine: Podman, forky: str, tmp_path: Path) -> None:
    """The newest Python that the pinned packages have wheels for."""
    printed = run(engine, forky, checkout(tmp_path), PROOF)
    sys.stdout.write(printed)
    assert "Python 3.14" in printed
    assert "embedded Postgres and Redis" in printed


def test_an_ordinary_user_on_a_bare_debian_13_is_told_all_that_is_missing(
    engine: Podman, trixie: str, tmp_path: Path
) -> None:
    printed = run(engine, trixie, checkout(tmp_path), as_user("make demo") + " || true")
    advice = "as root, apt-get install python3.13-venv default-jre-headless\n"
    assert [line for line in printed.splitlines(keepends=True) if line.endswith(advice)], printed


def test_an_ordinary_user_on_debian_12_has_checkpoints_and_tests(engine: Podman, bookworm: str, tmp_path: Path) -> None:
    commands = (
        "make up",
        ".venv/bin/python -m tests.docker.first_checkpoint",
        "make down",
        "make test JOBS=1 PYTEST='tests/stack/test_services.py tests/core/job/test_ids.py'",
    )
    printed = run(engine, bookworm, checkout(tmp_path), as_user(f'sh -ec "{"; ".join(commands)}"'))
    assert "Python 3.11" in printed
    assert "first checkpoint completed" in printed
    assert " passed" in printed
    assert " failed" not in printed
