"""The launcher's look at the machine: interpreters that run, Java homes, a Chromium that is one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stack.launch import browser, java, machine, venv


def make_java(home: Path, release: str | None, says: str = "") -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin/java"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


@pytest.mark.parametrize(
    ("release", "says", "version"),
    [
        ('IMPLEMENTOR="Debian"\nJAVA_VERSION="17.0.12"\n', "", 17),
        ('JAVA_VERSION="1.8.0_402"\n', "", 8),
        ('JAVA_VERSION="21"\n', "", 21),
        (None, 'openjdk version "11.0.2" 2019-01-15', 11),
        (None, 'java version "1.8.0_402"', 8),
        ("", "nonsense", 0),
    ],
)
def test_reads_the_java_version(tmp_path: Path, release: str | None, says: str, version: int) -> None:
    assert java.major_version(str(make_java(tmp_path / "home", release, says))) == version


def test_an_old_java_home_gives_way_to_a_newer_java_on_the_path(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", 'JAVA_VERSION="11.0.2"')
    new = make_java(tmp_path / "new", 'JAVA_VERSION="21.0.1"')

    assert java.find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == str(new)
    assert java.find_java({"JAVA_HOME": str(new), "PATH": str(old / "bin")}) == str(new)


def test_the_advice_names_a_package_that_every_distribution_has() -> None:
    """Debian 13 has no openjdk-17; each release's default-jre is 17 or newer from Debian 12 on."""
    assert java.PACKAGES[-1] == ("default-jre-headless",)
    assert "apt-get install default-jre-headless" in java.ADVICE


def test_an_interpreter_that_does_not_run_is_not_a_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pyenv shim without a version behind it prints a line and fails."""
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho 'pyenv: version not set' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))

    interpreters = machine.inspect_machine({}).interpreters

    assert [i.version for i in interpreters] == [sys.version_info[:2]]
    assert all(Path(i.path) != shim for i in interpreters)


def test_a_stub_that_asks_for_snap_is_no_chromium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = tmp_path / "chromium-browser"
    stub.write_text("#!/bin/sh\necho 'requires the chromium snap' >&2\nexit 1\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("WEIR_CHROMIUM", raising=False)

    assert browser.find_chromium() is None


def test_a_headless_shell_comes_before_a_browser_with_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("chromium", "chromium-headless-shell"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("WEIR_CHROMIUM", raising=False)

    assert browser.find_chromium() == str(tmp_path / "chromium-headless-shell")


def test_the_stamp_goes_stale_with_the_locks(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "examples/pyproject.toml", venv.BUILD_LOCK, venv.DEMO_LOCK, venv.DEV_LOCK):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    Path(venv.python_of(str(tmp_path))).symlink_to(sys.executable)
    current = [venv.is_current(str(tmp_path), lock) for lock in (venv.DEMO_LOCK, venv.DEV_LOCK)]
    assert current == [False, False]

    (tmp_path / ".venv/weir-stamp").write_text(venv.digest(str(tmp_path), venv.DEMO_LOCK))
    current = [venv.is_current(str(tmp_path), lock) for lock in (venv.DEMO_LOCK, venv.DEV_LOCK)]
    assert current == [True, False], "the demo needs no tools of developers"

    (tmp_path / ".venv/weir-stamp").write_text(venv.digest(str(tmp_path), venv.DEV_LOCK))
    current = [venv.is_current(str(tmp_path), lock) for lock in (venv.DEMO_LOCK, venv.DEV_LOCK)]
    assert current == [True, True]

    (tmp_path / venv.DEV_LOCK).write_text("two")
    current = [venv.is_current(str(tmp_path), lock) for lock in (venv.DEMO_LOCK, venv.DEV_LOCK)]
    assert current == [False, False]


def test_a_failed_installation_ends_with_its_last_lines(tmp_path: Path) -> None:
    message = "trying failed:\nno such package\nwhole log: "
    with (tmp_path / "log").open("w") as sink, pytest.raises(venv.SetupFailed, match=message):
        venv.run_logged(["/bin/sh", "-c", "echo no such package; exit 1"], sink, "trying")


OTHER_PYTHONS = ["python3.8", "python3.13", *(pytest.param(f"python3.{n}", marks=pytest.mark.slow) for n in (9, 10))]


@pytest.mark.parametrize("name", OTHER_PYTHONS)
def test_the_launcher_can_be_imported_by_other_pythons(name: str) -> None:
    """It must run before the right Python is found."""
    candidates = [
        shutil.which(name),
        *map(str, Path.home().glob(f".pyenv/versions/{name.removeprefix('python')}.*/bin/python3")),
    ]
    running = [path for path in candidates if path and subprocess.run([path, "-c", ""], check=False).returncode == 0]
    if not running:
        pytest.skip(f"no {name} on this machine")
    code = (
        "import stack.launch.__main__; from stack.launch import machine; "
        "print(len(machine.inspect_machine({}).interpreters) > 0)"
    )

    process = subprocess.run([running[0], "-c", code], cwd=venv_root(), capture_output=True, text=True, check=False)

    assert (process.stdout, process.stderr) == ("True\n", "")


def venv_root() -> Path:
    return Path(__file__).parents[3]
