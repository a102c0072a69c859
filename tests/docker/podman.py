"""podman for slow tests: images made from Debian's packages, in a storage of their own that leaves nothing behind.

Registries of images are not needed: a base image is a bootstrap of a Debian release, imported under the name that a
Dockerfile or composition asks for. pip in containers is configured as on the host.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from stack.reaper import TEST_MARK
from stack.settings import ROOT

PROGRAMS: Final = ("podman", "runc", "mmdebstrap", "git", "iptables")  #: netavark needs the last
_ENGINE: Final = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
tmp_dir = "{folder}/tmp"
lock_type = "file"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""
_STORAGE: Final = """
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


@dataclass(frozen=True, slots=True)
class Podman:
    """One storage and one naming of containers and networks.

    By default engines share `/run/libpod` and one set of locks, and one takes another's containers for lost ones.
    """

    folder: Path
    environment: Mapping[str, str]

    def __call__(self, *arguments: str, check: bool = True, timeout_s: float = 900.0) -> str:
        """Runs `podman …` and returns what it printed; the failure of a command shows all of it."""
        process = subprocess.run(
            ["podman", *arguments], env=self.environment, text=True, timeout=timeout_s, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert not check or process.returncode == 0, (
            f"podman {' '.join(arguments)}: {process.returncode}\n{process.stdout}"
        )
        return process.stdout

    def succeeds(self, *arguments: str) -> bool:
        process = subprocess.run(["podman", *arguments], env=self.environment, capture_output=True, check=False)
        return process.returncode == 0

    def bootstrap(self, suite: str, packages: Sequence[str], name: str) -> None:
        """Imports a Debian release with these packages as image `name`. Skips where the packages are out of reach."""
        archive = self.folder / "base.tar"
        expired = 'Acquire::Check-Valid-Until "false"'  # as the index of a mirror that stands still is, in time
        process = subprocess.run(
            ["mmdebstrap", "--variant=minbase", f"--aptopt={expired}", f"--include={','.join(packages)}",
             suite, str(archive)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if process.returncode != 0:
            pytest.skip(f"no Debian {suite} to be had here: {process.stderr.strip().splitlines()[-1]}")
        self("import", "--quiet", *_changes(pip_environment()), str(archive), name)
        archive.unlink()
        if not self.succeeds("run", "--rm", "--network", "host", name, "true"):
            pytest.skip("podman starts no container here: " + self("run", "--rm", name, "true", check=False)[-300:])


@contextlib.contextmanager
def podman() -> Iterator[Podman]:
    """Skips with the reason where containers cannot run; removes containers, images, networks and mounts at the end."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("containers made from packages need root")
    folder = Path(tempfile.mkdtemp(prefix="weir-podman-"))
    (folder / "engine.conf").write_text(_ENGINE.format(folder=folder))
    (folder / "storage.conf").write_text(_STORAGE.format(folder=folder))
    configuration = {
        "CONTAINERS_CONF": str(folder / "engine.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    engine = Podman(folder, {**os.environ, **configuration})
    try:
        yield engine
    finally:
        engine("rm", "--all", "--force", "--time", "2", check=False)
        engine("network", "prune", "--force", check=False)
        engine("system", "reset", "--force", check=False)
        shutil.rmtree(folder, ignore_errors=True)
    assert str(folder) not in Path("/proc/mounts").read_text(), "a mount is left behind"


def checkout(folder: Path) -> Path:
    """A copy of what git would commit here, without environment and data."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def pip_environment() -> dict[str, str]:
    """The host's configuration of pip as variables, which every user in a container reads."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings = (line.partition("=") for line in listed.splitlines())
    names = {key.rpartition(".")[2].upper().replace("-", "_"): value.strip("'\"") for key, _, value in settings}
    return {f"PIP_{name}": value for name, value in names.items()}


def pip_mounts() -> list[str]:
    """Options that show a container the files and folders of the host which pip's configuration names.

    The parent of a local index is shown with it: its pages may link to files beside it.
    """
    folders = dict[str, None]()
    for word in (word for value in pip_environment().values() for word in value.split()):
        path = Path(word.removeprefix("file://"))
        if path.is_absolute() and path.exists():
            folders[str(path.parent if word.startswith("file://") else path)] = None
    return [part for path in folders for part in ("-v", f"{path}:{path}:ro")]


def _changes(variables: Mapping[str, str]) -> list[str]:
    return [part for name, value in variables.items() for part in ("--change", f'ENV {name}="{value}"')]


def session_mark() -> list[str]:
    """Options that let the reaper of a killed test session find a container's processes."""
    return ["-e", f"{TEST_MARK}={os.environ[TEST_MARK]}"]


def unique(name: str) -> str:
    return f"{name}-{secrets.token_hex(4)}"
