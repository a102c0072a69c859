"""The command line as the console calls it: JSON in, JSON out, exit codes that mean something."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import psycopg
import pytest

from spark_jobs import __main__ as command_line
from tests.postgres import address_without_password
from tests.spark_jobs.conftest import environment_of

Command = Callable[..., Any]  # the fixture of conftest.py

PARAMS = {"flights_dir": "/in", "output_dir": "/out"}


def compile_flights(command: Command, params: object, *options: str, parallelism: int = 2) -> Any:
    where = ("--pipeline", "flights")
    return command("compile", *where, "--parallelism", str(parallelism), *options, params=params)


def test_pipelines_are_listed_with_a_schema_that_a_form_can_use(process: Command) -> None:
    answer = process("pipelines")
    assert answer.code == 0
    by_name = {pipeline["name"]: pipeline for pipeline in answer.json}
    assert {"flights", "wordcount"} <= by_name.keys()
    schema = by_name["flights"]["schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert schema["required"] == ["flights_dir", "output_dir"]
    assert schema["additionalProperties"] is False
    assert all(field.get("title") and field.get("description") for field in schema["properties"].values())


@pytest.mark.parametrize(
    ("params", "valid"),
    [
        (PARAMS, True),
        (PARAMS | {"on_malformed": "skip"}, True),
        (PARAMS | {"on_malformed": "guess"}, False),
        (PARAMS | {"max_disorder_hours": -1}, False),
        (PARAMS | {"flights_dir": "relative/folder"}, False),
        (PARAMS | {"unknown": 1}, False),
        ({"flights_dir": "/in"}, False),
    ],
)
def test_the_schema_and_the_compiler_agree(command: Command, params: dict[str, Any], valid: bool) -> None:
    from examples.pipelines.flights import PIPELINE
    from runtime.dataflow.pipelines import parameter_schema

    assert jsonschema.Draft202012Validator(parameter_schema(PIPELINE)).is_valid(params) is valid
    assert (compile_flights(command, params).code == 0) is valid


def test_a_missing_java_is_named_in_one_sentence(tmp_path: Path) -> None:
    """The folder of PATH has the programs of Spark's scripts, and no Java."""
    for name in ("bash", "dirname", "env", "head", "readlink", "tr", "uname"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/lines.txt").write_text("to be or not\n")
    params = {"lines_dir": str(tmp_path / "in"), "output_dir": str(tmp_path / "out"), "bounded": True}
    arguments = ["batch", "--pipeline", "wordcount", "--parallelism", "1", "--storage", str(tmp_path / "storage")]
    environment = {**environment_of(tmp_path), "PATH": str(tmp_path), "JAVA_HOME": ""}
    process = subprocess.run(
        [sys.executable, "-m", "spark_jobs", *arguments],
        input=json.dumps(params), env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    error = json.loads(process.stdout)["error"]
    assert (process.returncode, error["code"]) == (4, "spark-unavailable")
    assert "Spark needs Java 17 or newer. Install it: apt-get install default-jre-headless" in error["detail"]
    assert "Traceback" not in process.stderr
    assert process.stderr.splitlines()[-1] == f"wordcount: {error['detail']}"


def test_a_missing_input_folder_is_refused_before_spark_starts(command: Command, tmp_path: Path) -> None:
    params = {"lines_dir": "/in/nowhere", "output_dir": "/out", "bounded": True}
    arguments = ["--pipeline", "wordcount", "--parallelism", "1", "--storage", str(tmp_path / "storage")]
    answer = command("batch", *arguments, params=params)
    error = {"code": "missing-folder", "field": "lines.path", "detail": "there is no folder /in/nowhere"}
    assert (answer.code, answer.json) == (3, {"error": error})


@pytest.mark.slow
@pytest.mark.spark
def test_batch_delivers_the_epoch_of_a_sink(process: Command, database_url: str, tmp_path: Path) -> None:
    """S0-10: the command is the whole run, with no stage beside it, and leaves only the manifest of its end."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/lines.txt").write_text("to be or not to be\n")
    params = {
        "lines_dir": str(tmp_path / "in"), "output_dir": str(tmp_path / "table"), "bounded": True,
        "database_url": address_without_password(database_url),
    }  # fmt: skip
    storage = tmp_path / "storage"
    arguments = ["--pipeline", "word_table", "--parallelism", "1", "--storage", str(storage)]
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE words (word text, count bigint)")
        try:
            answer = process("batch", *arguments, params=params)
            rows = connection.execute("SELECT word, count FROM words ORDER BY word").fetchall()
        finally:
            connection.execute("DROP TABLE IF EXISTS words, weir_epochs")
    assert (answer.code, answer.json) == (0, {"rows": {"tables": 6}})
    assert rows == [("be", 2), ("not", 1), ("or", 1), ("to", 2)]
    assert [path.name.split("-")[0] for path in storage.iterdir()] == ["savepoint"]


def test_flights_compile_to_their_graph(command: Command) -> None:
    answer = compile_flights(command, PARAMS, "--max-parallelism", "64", parallelism=3)
    assert answer.code == 0
    graph = answer.json["graph"]
    assert graph["max_parallelism"] == 64
    operators = {
        operator["uid"]: (operator["role"], operator["parallelism"], operator["bounded"])
        for operator in graph["operators"]
    }
    assert operators == {
        "flights": ("source", 3, False),
        "prepared": ("operator", 3, False),
        "airlines": ("source", 1, True),
        "weather": ("source", 1, True),
        "history": ("source", 3, True),
        "joined": ("operator", 3, False),
        "outside": ("operator", 3, False),
        "arrived": ("operator", 3, False),
        "daily": ("operator", 3, False),
        "parquet": ("sink", 3, False),
    }
    assert {operator["uid"]: operator["most"] for operator in graph["operators"]} == dict.fromkeys(operators, 64) | {
        "airlines": 1,
        "weather": 1,
    }
    edges = {(edge["source"], edge["target"]): edge for edge in graph["edges"]}
    assert edges["airlines", "joined"]["build"] is True
    assert edges["airlines", "joined"]["partitioning"] == "broadcast"
    assert edges["arrived", "daily"]["keys"] == ["carrier", "name", "origin"]


@pytest.mark.parametrize(
    ("change", "field", "word"),
    [
        ({"flights_dir": 7}, "flights_dir", "str"),
        ({"max_disorder_hours": "soon"}, "max_disorder_hours", "int"),
        ({"output_dir": "here"}, "output_dir", "^/"),
        ({"on_malformed": "dead_letter"}, "dead_letter_dir", "needs a folder"),
        ({"output_dir": "/in/"}, "output_dir", "own output"),
    ],
)
def test_a_refusal_names_the_parameter(command: Command, change: dict[str, Any], field: str, word: str) -> None:
    answer = compile_flights(command, PARAMS | change)
    assert answer.code == 3
    error = answer.json["error"]
    assert error["field"] == field
    assert word in error["detail"]
    assert error["code"]


def test_a_parallelism_above_the_key_groups_is_refused(command: Command) -> None:
    answer = compile_flights(command, PARAMS, "--max-parallelism", "4", parallelism=5)
    assert (answer.code, answer.json["error"]["code"]) == (3, "bad-parallelism")


def test_an_unknown_pipeline_is_refused_by_name(command: Command) -> None:
    answer = command("compile", "--pipeline", "os.system", "--parallelism", "1")
    assert (answer.code, answer.json["error"]["field"]) == (3, "pipeline")
    assert "flights" in answer.json["error"]["detail"]


@pytest.mark.parametrize("text", ["{", "[1]", '"text"'])
def test_parameters_that_are_not_an_object_are_refused(command: Command, text: str) -> None:
    answer = command("compile", "--pipeline", "flights", "--parallelism", "1", text=text)
    assert (answer.code, answer.json["error"]["code"]) == (3, "bad-json")


def test_wrong_usage_answers_on_stderr(process: Command) -> None:
    answer = process("compile", "--pipeline", "flights")
    assert (answer.code, answer.json) == (2, None)
    assert "--parallelism" in answer.stderr


@dataclass(frozen=True)
class Stood:
    """How a standing stage ended by itself, with the lines that it wrote."""

    code: int
    lines: list[Any]
    stderr: str


def stand(tmp_path: Path, params: object, **env: str) -> Stood:
    """The stage of a run's tables, as its supervisor starts it: the end of its stdin would end it."""
    folders = {name: str(tmp_path / name) for name in ("inputs", "columns", "streams")}
    arguments = {"pipeline": "flights", "operator": "airlines", "run": "12", "token": "7", **folders}
    command = ["stand", "tables", *(part for name, value in arguments.items() for part in (f"--{name}", value))]
    with (tmp_path / "stderr").open("w") as stderr, subprocess.Popen(
        [sys.executable, "-m", "spark_jobs", *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=tmp_path,
        env=os.environ | environment_of(tmp_path) | env,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(params) + "\n")
        process.stdin.flush()
        lines = [json.loads(line) for line in process.stdout]
        code = process.wait()
    return Stood(code, lines, (tmp_path / "stderr").read_text())


@pytest.mark.slow
@pytest.mark.spark
def test_the_stage_of_the_tables_writes_once_and_ends(tmp_path: Path) -> None:
    """The three tables of the demo, each row of them; what is complete needs no Spark."""
    for master in ("", "spark://nobody.invalid:7077"):
        answer = stand(tmp_path, PARAMS, SPARK_MASTER=master)
        assert answer.code == 0, answer.stderr
        *reports, end = answer.lines
        assert end == {"done": True}
        figures = {figure["label"]: figure["value"] for figure in reports[-1]["report"]["figures"]}
        assert {uid: text.split(" in ")[0] for uid, text in figures.items()} == {
            "airlines": "complete, 16 rows", "weather": "complete, 26,112 rows", "history": "complete, 336,776 rows",
        }  # fmt: skip


@pytest.mark.slow
@pytest.mark.spark
def test_a_broken_table_answers_with_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "airlines.csv"
    broken.write_text("code,label\nAA,American\n")
    answer = stand(tmp_path, PARAMS | {"airlines_csv": str(broken)})
    assert answer.code == 3
    error = answer.lines[-1]["error"]
    assert (error["code"], error["field"]) == ("input-failed", "airlines")
    assert "\n" not in error["detail"]
    assert not list((tmp_path / "inputs").rglob("*.parquet"))


# ---------------------------------------------------------------- folders


def link(at: Path, to: Path) -> str:
    at.symlink_to(to)
    return str(at)


@pytest.mark.parametrize("name", ["flights_dir", "output_dir", "dead_letter_dir", "airlines_csv"])
def test_a_path_outside_the_data_roots_is_refused_by_parameter(command: Command, tmp_path: Path, name: str) -> None:
    """An attacker who may define jobs names a file of the service account, directly or behind a link."""
    policy = {"on_malformed": "dead_letter", "dead_letter_dir": "/out/letters"}
    for path in ("/etc", link(tmp_path / "innocent", Path("/etc")), str(tmp_path / "var" / ".." / "var" / "run")):
        answer = compile_flights(command, PARAMS | policy | {name: path})
        assert (answer.code, answer.json["error"]["field"]) == (3, name), answer
        assert answer.json["error"]["code"] == "path-not-allowed"
        assert "WEIR_DATA_ROOTS" in answer.json["error"]["detail"]
        assert str(tmp_path) in answer.json["error"]["detail"], "the allowed roots are named"


def test_a_link_that_changes_after_the_version_was_compiled_is_refused_by_the_stage(
    command: Command, tmp_path: Path
) -> None:
    secret = tmp_path / "var" / "run" / "env"
    secret.parent.mkdir(parents=True)
    secret.write_text("DATABASE_URL=postgresql://weir:swordfish@127.0.0.1/weir\n")
    (tmp_path / "airlines.csv").write_text("carrier,name\nAA,American\n")
    params = PARAMS | {"airlines_csv": link(tmp_path / "list", tmp_path / "airlines.csv")}
    assert compile_flights(command, params).code == 0
    (tmp_path / "list").unlink()
    link(tmp_path / "list", secret)
    stood = stand(tmp_path, params)
    assert (stood.code, stood.lines[-1]["error"]["code"]) == (3, "path-not-allowed")
    assert "swordfish" not in stood.stderr + str(stood.lines)
    assert not list((tmp_path / "inputs").rglob("*.parquet"))


@pytest.mark.parametrize(
    ("bounded", "mode", "resolved"),
    [
        (False, "streaming", "streaming"),
        (True, "streaming", "streaming"),
        (False, "automatic", "streaming"),
        (True, "automatic", "batch"),
        (True, "batch", "batch"),
    ],
)
def test_a_version_is_compiled_for_its_mode(command: Command, bounded: bool, mode: str, resolved: str) -> None:
    """S0-06, S0-09: a join of an unbounded stream with a bounded table runs in STREAMING."""
    answer = compile_flights(command, PARAMS | {"bounded": bounded}, "--mode", mode)
    assert (answer.code, answer.json["graph"]["mode"]) == (0, resolved)


def test_batch_with_an_unbounded_source_is_refused_by_name(command: Command) -> None:
    """S0-05: one error, before anything starts."""
    answer = compile_flights(command, PARAMS, "--mode", "batch")
    assert answer.code == 3
    assert (answer.json["error"]["code"], answer.json["error"]["field"]) == ("unbounded-in-batch", "flights")


def test_batch_with_a_bucket_as_storage_is_refused_by_name(command: Command) -> None:
    """Epochs of its sinks are folders of the storage."""
    answer = command(
        "batch", "--pipeline", "wordcount", "--parallelism", "1", "--storage", "s3://bucket/batch", params={}
    )
    assert answer.code == 3
    assert answer.json["error"]["detail"].startswith("s3://bucket/batch: a bucket is not supported here")


@pytest.mark.parametrize("storage", ["S3://bucket/batch", "gs://bucket/batch"])
def test_batch_refuses_a_storage_before_it_makes_a_folder(
    command: Command, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    answer = command("batch", "--pipeline", "wordcount", "--parallelism", "1", "--storage", storage, params={})
    assert (answer.code, answer.json["error"]["code"]) == (3, "bad-storage")
    assert list((tmp_path / "here").iterdir()) == []


class Answers(io.StringIO):
    """Stdout, whose text can be read after it has been closed."""

    def close(self) -> None:
        return None


def test_an_error_does_not_quote_a_secret_that_the_parameters_refer_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no way to postgresql://app:fish-and-chips@db")

    answers = Answers()
    monkeypatch.setenv("WEIR_SECRET_ORDERS", "fish-and-chips")
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"url": "postgresql://app:${secret:orders}@db"})))
    monkeypatch.setattr(command_line, "_reserve_stdout", lambda: answers)
    monkeypatch.setattr("spark_jobs.stages.compile.compile_graph", fail)
    assert command_line.main(["compile", "--pipeline", "wordcount", "--parallelism", "1"]) == 1
    logged = capsys.readouterr().err
    assert json.loads(answers.getvalue())["error"]["detail"] == ("RuntimeError: no way to postgresql://app:********@db")
    assert "app:********@db" in logged
    assert "fish-and-chips" not in logged
