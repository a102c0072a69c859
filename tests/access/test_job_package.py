"""A process imports exactly the code of its package, or is refused with the name of a module."""

import json
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.libraries import PACKAGE_VERSIONS_FILE, installed_versions

IMPORT = (
    "from pathlib import Path; from runtime.access.job_package import import_from; import_from(Path({package!r}))\n"
)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return _write(tmp_path / "package", PACKAGE_VERSIONS_FILE, json.dumps(installed_versions()))


def _write(folder: Path, name: str, text: str) -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


def _run(package: Path, program: str, before: str = "", host: Path | None = None) -> str:
    """What a process prints that imports from the package and then runs `program`. `host`: modules beside Weir."""
    paths = os.pathsep.join(str(each) for each in (host, Path.cwd()) if each)
    text = f"{before}\n{IMPORT.format(package=str(package))}{program}"
    variables = {**os.environ, "PYTHONPATH": paths}
    process = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, env=variables)
    return process.stdout + process.stderr


def test_a_module_that_is_imported_already_is_refused_by_name(package: Path, tmp_path: Path) -> None:
    host = _write(tmp_path / "host", "company/job.py", "WORD = 'host'")
    _write(package, "company/job.py", "WORD = 'package'")
    text = _run(package, "import company.job; print(company.job.WORD)", "import company.job", host)
    assert f"its module company.job is imported in this process already, from {host}/company/job.py" in text


def test_a_namespace_that_is_imported_already_is_none(package: Path, tmp_path: Path) -> None:
    host = _write(tmp_path / "host", "company/other.py", "")
    _write(package, "company/job.py", "WORD = 'package'")
    assert _run(package, "import company.job; print(company.job.WORD)", "import company.other", host) == "package\n"


def test_a_folder_that_a_package_of_the_host_replaces_is_refused(package: Path, tmp_path: Path) -> None:
    host = _write(tmp_path / "host", "company/__init__.py", "")
    _write(host, "company/job.py", "WORD = 'host'")
    _write(package, "company/job.py", "WORD = 'package'")
    text = _run(package, "import company.job; print(company.job.WORD)", host=host)
    assert f"its module company is imported from {host}/company/__init__.py: add an __init__.py" in text


def test_a_package_replaces_modules_of_the_host_that_are_not_of_weir(package: Path, tmp_path: Path) -> None:
    host = _write(tmp_path / "host", "company/__init__.py", "WORD = 'host'")
    _write(package, "company/__init__.py", "WORD = 'package'")
    assert _run(package, "import company; print(company.WORD)", host=host) == "package\n"


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("google/protobuf/__init__.py", "google.protobuf"),
        ("google/protobuf.py", "google.protobuf"),
        ("pyarrow/__init__.py", "pyarrow"),
        ("runtime.py", "runtime"),
        ("json/extra.py", "json"),
        ("sys.py", "sys"),
    ],
)
def test_a_module_of_python_weir_or_its_libraries_is_refused(package: Path, file: str, module: str) -> None:
    _write(package, file, "")
    assert f"its module {module} has the name of a module of Python, Weir or its libraries" in _run(package, "")


def test_a_part_of_a_namespace_that_a_library_of_weir_shares_is_imported(package: Path) -> None:
    _write(package, "google/ours/__init__.py", "WORD = 'package'")
    text = "import google.protobuf, google.ours; print(google.ours.WORD)"
    assert _run(package, text) == "package\n"


@pytest.mark.parametrize("name", ["Weir", "Python", "Arrow"])
def test_each_process_refuses_a_package_that_was_built_for_another_version(package: Path, name: str) -> None:
    """A host may be upgraded after the upload."""
    _write(package, PACKAGE_VERSIONS_FILE, json.dumps({**installed_versions(), name: "0.0"}))
    text = _run(package, "")
    assert f"it was built for {name} 0.0, and {name} {installed_versions()[name]} runs here: build it anew" in text


def test_each_process_refuses_a_distribution_that_is_installed_with_weir(package: Path) -> None:
    _write(package, "msgspec-0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: msgspec\nVersion: 0.1\n")
    assert "it brings msgspec 0.1, and msgspec " in _run(package, "")


def test_no_bytecode_is_read_from_the_package_or_written_to_it(package: Path, tmp_path: Path) -> None:
    source, other = package / "job.py", tmp_path / "other.py"
    source.write_text("WORD = 'source'")
    other.write_text("WORD = 'forged'")
    os.utime(other, (source.stat().st_mtime, source.stat().st_mtime))
    cached = f"{package}/__pycache__/job.{sys.implementation.cache_tag}.pyc"
    forged = py_compile.compile(str(other), cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert forged == cached
    py_compile.compile(str(other), str(package / "alone.pyc"))
    _write(package, "part/__init__.py", "")
    text = _run(package, "import job, part; print(job.WORD)\ntry:\n    import alone\nexcept ImportError: print('none')")
    assert text == "source\nnone\n"
    assert not (package / "part" / "__pycache__").exists()
