"""Pipelines of packages that are installed beside Weir: one broken package costs its own pipelines only."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark_jobs.conftest import ROOT, Command

MODULE = """
import msgspec
from runtime.dataflow.pipelines import Pipeline

class Params(msgspec.Struct): pass

PIPELINE = Pipeline(name={name!r}, description={about!r}, params=Params, build=lambda params, context: None)
"""


def install(folder: Path, package: str, code: str, entry: str = "", points: str = "") -> None:
    """As pip leaves it: a module, its metadata and its entry points."""
    module = package.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = points or f"{entry} = {module}:PIPELINE"
    (info / "entry_points.txt").write_text(f"[weir.pipelines]\n{lines}\n")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site").mkdir()
    return tmp_path / "site"


def listed(command: Command, site: Path) -> dict[str, Any]:
    answer = command("pipelines", PYTHONPATH=os.pathsep.join([str(site), str(ROOT)]))
    assert answer.code == 0, answer.stderr
    return {entry["name"]: entry for entry in answer.json}


#: Code of a package, and its error.
BROKEN = {
    "missing": (
        "import a_module_that_is_not_there",
        "ModuleNotFoundError: No module named 'a_module_that_is_not_there'",
    ),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "number": ("PIPELINE = 7", "it is not a Pipeline but int"),
    "empty": ("", "AttributeError"),
    "torn": (MODULE.format(name="torn", about="x").replace("params=Params", "params=int"), "schema"),
    "query": (
        MODULE.format(name="query", about="x").replace("build=", "queries={'all': ' '}, build="),
        "queries['all']: a query needs SQL",
    ),
}


def test_broken_entry_points_are_listed_with_their_errors_and_the_rest_works(command: Command, site: Path) -> None:
    for name, (code, _) in BROKEN.items():
        install(site, f"acme-{name}", code, name)
    entries = listed(command, site)
    assert {"flights", "wordcount"} <= {name for name, entry in entries.items() if not entry["error"]}
    environment = {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    for name, (_, error) in BROKEN.items():
        assert error in entries[name]["error"]
        assert f"acme-{name}" in entries[name]["error"], "the package is named"
        answer = command("compile", "--pipeline", name, "--parallelism", "1", **environment)
        assert answer.json["error"]["code"] == "broken-pipeline"
        assert error in answer.json["error"]["detail"]
    arguments = ("--pipeline", "wordcount", "--parallelism", "1")
    assert command("compile", *arguments, params={"lines_dir": "/in", "output_dir": "/out"}, **environment).code == 0


def test_two_pipelines_of_one_name_are_refused_with_both_packages(command: Command, site: Path) -> None:
    install(site, "acme-first", MODULE.format(name="sums", about="first"), "sums")
    install(site, "acme-second", MODULE.format(name="sums", about="second"), "totals")
    entries = listed(command, site)
    assert "acme-first" in entries["sums"]["error"]
    assert "acme-second" in entries["sums"]["error"]
    assert entries["wordcount"]["error"] == ""
    assert "totals" not in entries


def test_one_pipeline_under_two_entry_points_is_one(command: Command, site: Path) -> None:
    points = "sums = acme:PIPELINE\nagain = acme:PIPELINE"
    install(site, "acme", MODULE.format(name="sums", about="first"), points=points)
    assert listed(command, site)["sums"]["error"] == ""


HANGS = "import threading\nthreading.Event().wait(100)\n"

LISTING = """
import json, sys
from runtime.dataflow import pipelines
from spark_jobs.stages.compile import describe_pipelines
pipelines.IMPORT_TIMEOUT_S = float(sys.argv[1])
for name in ("components", "flights", "wordcount"):
    pipelines.pipeline(name)  # only the package that hangs is under the limit
print(json.dumps({one["name"]: one["error"] for one in describe_pipelines()}))
"""


def test_a_lookup_loads_no_package_that_cannot_have_the_name(command: Command, site: Path) -> None:
    install(site, "acme-hangs", HANGS, "stuck")
    arguments = ("--pipeline", "wordcount", "--parallelism", "1")
    environment = {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    answer = command("compile", *arguments, params={"lines_dir": "/in", "output_dir": "/out"}, **environment)
    assert answer.code == 0, answer.stderr


def test_an_import_that_hangs_is_listed_with_its_package_and_the_rest_works(tmp_path: Path, site: Path) -> None:
    install(site, "acme-hangs", "try:\n    import threading\n    threading.Event().wait()\nexcept Exception: pass", "a")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    command = [sys.executable, "-c", LISTING, "0.5"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    errors = json.loads(process.stdout)
    assert "acme-hangs" in errors["a"]
    assert "takes longer than 0.5 s" in errors["a"]
    assert {name for name, error in errors.items() if not error} >= {"components", "flights", "wordcount"}


def test_a_pipeline_under_an_entry_point_of_another_name_is_found(command: Command, site: Path) -> None:
    install(site, "acme", MODULE.format(name="sums", about="x"), "totals")
    where = ("--pipeline", "sums", "--parallelism", "1")
    answer = command("compile", *where, PYTHONPATH=os.pathsep.join([str(site), str(ROOT)]))
    assert answer.code == 1, "it is found, and makes no dataflow"
    assert answer.json["error"]["code"] == "stage-failed"


WHOLE = """
import msgspec
import weir

class Params(msgspec.Struct): pass

def build(params, context):
    flow = weir.Dataflow("sums")
    flow.source("rows", weir.SequenceSource(rows=10)).sink("out", weir.DiscardSink())
    return flow

PIPELINE = weir.Pipeline(name="sums", description="", params=Params, build=build)
"""


def test_a_graph_names_the_package_and_version_of_its_code(command: Command, site: Path) -> None:
    """Also if the entry point has another name than the pipeline."""
    install(site, "acme", WHOLE, "totals")
    where = ("--pipeline", "sums", "--parallelism", "1")
    answer = command("compile", *where, PYTHONPATH=os.pathsep.join([str(site), str(ROOT)]))
    assert answer.code == 0, answer.stderr
    code = answer.json["graph"]["code"]
    assert (code["package"], code["version"]) == ("acme", "1.0")
    assert len(code["graph"]) == 32
