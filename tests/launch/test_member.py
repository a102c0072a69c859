"""A pool member: the versions and the package of its process."""

import json
import os
import subprocess
import sys
from pathlib import Path

from pyspark import cloudpickle

from runtime.access.job_package import JobPackage
from runtime.core.job.ids import Token
from runtime.io.package_archive import write_archive
from runtime.io.package_cache import package_path
from runtime.io.store import open_store
from runtime.launch.member import SlotPoolAddress, member_task
from runtime.libraries import DISTRIBUTION, PACKAGE_VERSIONS_FILE, installed_versions

ADDRESS = SlotPoolAddress(token=Token(1), secret="secret", master="127.0.0.1:1")


def _run_slot(folder: Path, package: JobPackage | None, program: str = "", path: Path | None = None) -> str:
    """What a process prints that runs `program` and then slot 0, as an executor does. `path`: before the others."""
    (folder / "task").write_bytes(cloudpickle.dumps(member_task(ADDRESS, b"no job", package)))  # type: ignore[no-untyped-call]
    run = f"{program}\nimport pickle\nlist(pickle.load(open({str(folder / 'task')!r}, 'rb'))([0]))"
    paths = os.pathsep.join(str(each) for each in (path, os.environ.get("PYTHONPATH"), Path.cwd()) if each)
    variables = {**os.environ, "PYTHONPATH": paths}
    process = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False, env=variables)
    assert process.returncode == 1
    return process.stderr


def test_a_process_with_another_version_runs_no_slot_and_says_why(tmp_path: Path) -> None:
    metadata = tmp_path / f"{DISTRIBUTION.replace('-', '_')}-9.9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: 9.9\n")
    master = installed_versions()["Weir"]
    assert f"has Weir 9.9, and the job master has Weir {master}\n" in _run_slot(tmp_path, None, path=tmp_path)


def _packages(folder: Path) -> list[JobPackage]:
    packages = []
    for word in ("hey", "there"):
        (folder / word).mkdir()
        (folder / word / "wordmodule.py").write_text(f"WORD = {word!r}\n")
        (folder / word / PACKAGE_VERSIONS_FILE).write_text(json.dumps(installed_versions()))
        data, digest = write_archive(folder / word)
        open_store(str(folder / "storage")).create(package_path(digest), data)
        packages.append(JobPackage(digest, str(folder / "storage")))
    return packages


def test_a_process_imports_one_package_and_no_other(tmp_path: Path) -> None:
    packages = _packages(tmp_path)
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


def test_a_slot_of_installed_code_is_refused_in_a_process_with_a_package(tmp_path: Path) -> None:
    package, _ = _packages(tmp_path)
    program = f"""
from runtime.access.job_package import JobPackage
from runtime.io.package_cache import activate
activate({package!r})
"""
    sentence = f"this process runs the package {package.digest}, and the job master runs installed code"
    assert sentence in _run_slot(tmp_path, None, program)
