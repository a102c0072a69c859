"""The command `weir`: one script for authors, operators and the processes of the console."""

import json
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import weir
from stack import plan
from weir.control.__main__ import main
from weir.control.processes import QUEUES

ROOT = Path(__file__).parent.parent


def test_the_distribution_has_one_script() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"weir": f"{main.callback.__module__}:main"}


def test_the_version_is_shown() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout == f"weir {weir.__version__}\n"


def test_pipelines_are_a_table_for_people_and_have_schemas_for_programs() -> None:
    lines = CliRunner().invoke(main, ["pipelines"]).stdout.splitlines()
    assert lines[0].split() == ["NAME", "DESCRIPTION", "ERROR"]
    pipelines = json.loads(CliRunner().invoke(main, ["pipelines", "--json"]).stdout)
    assert [line.split()[0] for line in lines[1:]] == [each["name"] for each in pipelines]
    assert "lines_dir" in next(each for each in pipelines if each["name"] == "wordcount")["schema"]["properties"]


def test_a_job_runs_in_the_process_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_DATA_ROOTS", str(tmp_path))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/lines.txt").write_text("to be or not\nto be\n")
    params = {"lines_dir": str(tmp_path / "in"), "output_dir": str(tmp_path / "out"), "bounded": True}
    process = subprocess.run(
        [sys.executable, "-m", "weir.control", "run", "--pipeline", "wordcount", "--json"],
        input=json.dumps(params), capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = {row["step"]: (row["rows_in"], row["rows_out"]) for row in json.loads(process.stdout)}
    assert (rows["lines"], rows["words"]) == ((0, 2), (2, 6))
    assert list((tmp_path / "out").glob("part-*"))


def test_ctrl_c_stops_a_job_without_end_and_commits_the_rows_that_it_has_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/lines.txt").write_text("to be or not\nto be\n")
    params = {"lines_dir": str(tmp_path / "in"), "output_dir": str(tmp_path / "out")}
    with subprocess.Popen(
        [sys.executable, "-m", "weir.control", "run", "--pipeline", "wordcount", "--json"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdin.write(json.dumps(params))
        child.stdin.close()
        lines = []
        for line in child.stderr:
            lines.append(line)
            if re.fullmatch(r"rows read 2, written \d+; checkpoints \d+\n", line):
                child.send_signal(signal.SIGINT)
        rows = {row["step"]: row["rows_out"] for row in json.loads(child.stdout.read())}
    assert lines[0] == "lines reads without end: Ctrl-C stops the job with a savepoint.\n", "".join(lines)
    assert "stopping with a savepoint; Ctrl-C again ends the job at once, without it\n" in lines
    assert (child.returncode, rows["lines"], rows["words"]) == (0, 2, 6)
    assert list((tmp_path / "out").glob("part-*"))


def test_a_missing_input_folder_is_refused_before_the_job_starts(tmp_path: Path) -> None:
    params = {"lines_dir": str(tmp_path / "nowhere"), "output_dir": str(tmp_path / "out"), "bounded": True}
    result = CliRunner().invoke(main, ["run", "--pipeline", "wordcount"], input=json.dumps(params))
    assert (result.exit_code, result.stderr) == (3, f"weir: lines.path: there is no folder {tmp_path}/nowhere\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["run", "--pipeline", "os.system"], 3, "weir: pipeline: 'os.system' is not installed"),
        (["jobs", "--url", "x"], 2, "No such option"),
        (["worker", "nights"], 2, "'nights' is not one of"),
    ],
)
def test_a_refusal_is_a_line_and_an_exit_code(arguments: list[str], code: int, text: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr


@pytest.mark.parametrize(
    ("command", "missing", "extra"), [("web", "django", "console"), ("worker runs", "pyspark", "spark")]
)
def test_a_process_whose_extra_is_missing_names_it(command: str, missing: str, extra: str) -> None:
    program = f"""
import sys
from importlib.machinery import PathFinder
found = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name == {missing!r} else found(name, *more)
from weir.control.__main__ import main
main({command.split()!r})
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert process.returncode == 3
    assert process.stderr.endswith(f"pip install 'weir-streams[{extra}]'\n")


def test_the_stack_starts_a_worker_for_each_queue() -> None:
    specs = plan.workers({})
    assert {spec.argv[spec.argv.index("worker") + 1] for spec in specs} == set(QUEUES)
