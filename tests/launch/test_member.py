"""A pool member: the versions and the package of its process."""

import subprocess
import sys
from pathlib import Path

import pytest

from runtime.access.job_package import JobPackage
from runtime.core.job.ids import Token
from runtime.errors import EnvironmentFailure
from runtime.io.package_archive import write_archive
from runtime.io.package_cache import package_path
from runtime.io.store import open_store
from runtime.launch import member
from runtime.launch.member import SlotPoolAddress, member_task
from runtime.libraries import installed_versions

ADDRESS = SlotPoolAddress(token=Token(1), secret="secret", master="127.0.0.1:1")


def test_a_process_with_another_version_runs_no_slot_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    task = member_task(ADDRESS, b"no job")
    master = installed_versions()
    monkeypatch.setattr(member, "installed_versions", lambda: {**master, "Weir": "9.9", "Arrow": "1.0"})
    sentence = f"has Weir 9.9, Arrow 1.0, and the job master has Weir {master['Weir']}, Arrow {master['Arrow']}"
    with pytest.raises(EnvironmentFailure, match=sentence):
        list(task([0]))


def test_a_process_imports_one_package_and_no_other(tmp_path: Path) -> None:
    packages = []
    for word in ("hey", "there"):
        (tmp_path / word).mkdir()
        (tmp_path / word / "wordmodule.py").write_text(f"WORD = {word!r}\n")
        data, digest = write_archive(tmp_path / word)
        open_store(str(tmp_path / "storage")).create(package_path(digest), data)
        packages.append(JobPackage(digest, str(tmp_path / "storage")))
    program = f"""
from runtime.access.job_package import JobPackage
from runtime.io.package_cache import activate
first, second = {packages!r}
activate(first)
activate(first)
import wordmodule
print(wordmodule.WORD)
activate(second)
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert process.stdout == "hey\n"
    assert f"this process runs the package {packages[0].digest}, not {packages[1].digest}" in process.stderr
