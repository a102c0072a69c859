"""`weir package`: projects as files, described by a process that imports nothing else of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from runtime.io.package_archive import read_archive
from tests.packages import word_files, write_project
from weir.control.__main__ import main


@pytest.fixture(autouse=True)
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def _package(project: Path) -> Result:
    return CliRunner().invoke(main, ["package", str(project), "--output", f"{project}.zip", "--json"])


def _error(result: Result) -> str:
    assert result.exit_code == 3, result.output
    return result.stderr


def test_a_package_has_the_files_of_the_project_and_its_description(tmp_path: Path) -> None:
    project = write_project(tmp_path / "a", "wordjob", word_files("hey"))
    result = _package(project)
    assert result.exit_code == 0, result.output
    about: dict[str, Any] = json.loads(result.stdout)
    assert [each["name"] for each in about["pipelines"]] == ["wordjob"]
    assert about["pipelines"][0]["schema"]["required"] == ["lines_dir", "output_dir"]
    assert about["distributions"] == {"wordjob": "1.0"}
    assert set(about["versions"]) == {"Weir", "Python", "Arrow"}
    names = [name for name, _ in read_archive((tmp_path / "a.zip").read_bytes())]
    assert [name for name in names if name.startswith("wordjob/")] == [
        "wordjob/__init__.py", "wordjob/job.py", "wordjob/word.txt",
    ]  # fmt: skip
    assert not any("direct_url" in name or name.endswith(".pyc") for name in names)


def test_the_same_project_in_another_folder_has_the_same_digest(tmp_path: Path) -> None:
    projects = [write_project(tmp_path / name, "wordjob", word_files("hey")) for name in "ab"]
    first, second = (json.loads(_package(project).stdout) for project in projects)
    assert first == second


def test_a_requirement_that_the_libraries_of_weir_do_not_meet_is_refused_by_pip(tmp_path: Path) -> None:
    project = write_project(tmp_path / "a", "wordjob", word_files("hey"), requires=["weir-streams", "pyarrow<1"])
    text = _error(_package(project))
    assert "wordjob 1.0 depends on pyarrow<1" in text
    assert "The user requested (constraint) pyarrow==" in text
    assert not (tmp_path / "a.zip").exists()


def test_a_package_that_cannot_be_imported_is_refused_with_its_traceback(tmp_path: Path) -> None:
    project = write_project(tmp_path / "a", "wordjob", {"job.py": "def load():\n    return 1 / 0\n\nload()\n"})
    text = _error(_package(project))
    assert "the entry point wordjob = wordjob.job:PIPELINE cannot be imported" in text
    assert 'job.py", line 2, in load' in text
    assert "ZeroDivisionError" in text


def test_a_package_without_pipelines_is_refused(tmp_path: Path) -> None:
    project = write_project(tmp_path / "a", "wordjob", {}, pipelines={})
    assert "no entry point in the group weir.pipelines" in _error(_package(project))


def test_a_package_with_a_module_of_weir_or_python_is_refused(tmp_path: Path) -> None:
    project = write_project(tmp_path / "a", "runtime", {"job.py": "PIPELINE = 1\n"})
    assert "its module runtime has the name of a module of Python, Weir" in _error(_package(project))


def test_a_folder_without_a_project_is_refused(tmp_path: Path) -> None:
    assert "has no pyproject.toml" in _error(_package(tmp_path))
