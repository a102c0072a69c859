"""locks/: every file that an installation takes has a hash there, and another file is refused."""

from __future__ import annotations

import hashlib
import re
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from stack.launch import venv
from tests.s3 import S3_LOCK

ROOT = Path(__file__).parent.parent.parent
PIN = re.compile(r"^([\w.-]+)==([^\s;\\]+)")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")


def pins(path: Path) -> dict[str, str]:
    matches = (PIN.match(line) for line in path.read_text().splitlines())
    return {re.sub(r"[-_.]+", "-", pin[1]).lower(): pin[2] for pin in matches if pin}


@pytest.mark.parametrize("name", ["all", "build", "demo", "image", "s3"])
def test_every_locked_package_has_the_pinned_version_and_hashes(name: str) -> None:
    text = (ROOT / f"locks/{name}.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines
    assert [line for line in lines if not (PIN.match(line) and HASH.search(line))] == []
    elsewhere = {"colorama", "httpx2-jsfetch"}  # for Windows and Emscripten, which `make` does not know
    constraints, locked = pins(ROOT / "constraints.txt"), pins(ROOT / f"locks/{name}.txt")
    assert locked.keys() - constraints.keys() <= elsewhere
    assert {key: constraints.get(key, locked[key]) for key in locked} == locked, "run `make lock`"


def test_every_pin_is_locked() -> None:
    locks = (venv.DEV_LOCK, venv.BUILD_LOCK, S3_LOCK)
    assert pins(ROOT / "constraints.txt").keys() <= {name for lock in locks for name in pins(ROOT / lock)}


def test_each_installation_has_the_libraries_of_its_extras_only() -> None:
    """The image has all but the embedded servers; the demo uses no connector but Postgres."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {extra: {re.split(r"[\[>=]", each)[0] for each in extras[extra]} for extra in extras.keys() - {"all"}}
    for lock, left_out in (("image", {"embedded"}), ("demo", {"avro", "cloud", "connect", "delta", "kafka"})):
        locked = pins(ROOT / f"locks/{lock}.txt").keys()
        assert {extra for extra in names if not names[extra] & locked} == left_out, lock


def make_wheel(folder: Path, name: str, content: str) -> Path:
    wheel = folder / f"{name}-1-py3-none-any.whl"
    info = f"{name}-1.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}.py", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that needs two packages, and an index that offers both. pip of this Python installs into a folder."""
    index = tmp_path / "index"
    for folder in ("index", "locks"):
        (tmp_path / folder).mkdir()
    for lock, name in ((venv.BUILD_LOCK, "backend"), (venv.DEMO_LOCK, "needed")):
        digest = hashlib.sha256(make_wheel(index, name, "GOOD = True").read_bytes()).hexdigest()
        (tmp_path / lock).write_text(f"{name}==1 --hash=sha256:{digest}\n")
    monkeypatch.setattr(venv, "python_of", lambda root: sys.executable)
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "installed"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return tmp_path


@pytest.mark.parametrize("name", ["backend", "needed"])
def test_a_package_of_other_content_is_not_installed(checkout: Path, name: str) -> None:
    """The attack: an index offers another file under the name and version of a pin."""
    make_wheel(checkout / "index", name, "EVIL = True")

    with pytest.raises(venv.SetupFailed, match="DO NOT MATCH THE HASHES"):
        venv.make_venv(str(checkout), sys.executable, venv.DEMO_LOCK, str(checkout / "log"))

    assert not list((checkout / "installed").rglob(f"{name}.py"))
    assert not venv.is_current(str(checkout), venv.DEMO_LOCK)
