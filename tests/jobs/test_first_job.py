"""The code of `docs/first-job.md`: its package runs, is installed, reads Kafka, and goes on after its change."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

import weir
from runtime.core.job.ids import Token
from runtime.core.job.settings import JobSettings
from runtime.io.memory.run_store import MemoryRunStore
from tests.jobs.live import running
from tests.kafka import running_broker
from weir.control import definition

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/first-job.md").read_text()
FIRST_ORDERS = re.findall(r"(?m)^    (\{.*\})$", PAGE)
NEXT_ORDERS = re.findall(r"(?m)^    echo '(\{.*\})'", PAGE)
CONTEXT = weir.PipelineContext("")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page."""
    root = tmp_path_factory.mktemp("first-job")
    for name, text in re.findall(r"(?ms)^`(\S+)`:\n\n```\w+\n(.*?)^```", PAGE):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "my-jobs/my_jobs/__init__.py").touch()
    return root


def module(folder: Path, name: str) -> dict[str, Any]:
    """The names of a module of the package."""
    names: dict[str, Any] = {"__name__": f"my_jobs.{name}"}
    exec(compile((folder / f"my-jobs/my_jobs/{name}.py").read_text(), name, "exec"), names)  # the page's own code
    return names


def write(orders: Path, name: str, lines: Sequence[str]) -> None:
    orders.mkdir(exist_ok=True)
    (orders / f".{name}").write_text("".join(line + "\n" for line in lines))
    (orders / f".{name}").rename(orders / name)


def sums(output: Path) -> list[tuple[str, str, int, int]]:
    """The committed rows, as the reader of the page sees them."""
    rows = pq.read_table(output).to_pylist() if output.exists() else []
    return sorted((f"{row['window_start']:%H:%M}", row["shop"], row["revenue"], row["orders"]) for row in rows)


FIRST_SUMS = [("10:00", "north", 30, 1), ("10:00", "south", 12, 1)]


def test_the_trial_prints_the_result_of_the_page(folder: Path) -> None:
    (text,) = re.findall(r"(?ms)^```text\n(.*?)^```", PAGE)
    process = subprocess.run(
        [sys.executable, "my-jobs/try_revenue.py"], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["my-jobs", str(ROOT)])},
    )  # fmt: skip
    assert process.stdout.endswith(f"\n{text}"), process.stderr


def test_the_installed_package_offers_its_pipelines(folder: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(tmp_path), "./my-jobs"], cwd=folder, check=True, capture_output=True)
    process = subprocess.run(
        [Path(sys.executable).with_name("weir"), "pipelines", "--json"], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
    )  # fmt: skip
    offered = {pipeline["name"]: pipeline["error"] for pipeline in json.loads(process.stdout)}
    assert (offered["revenue"], offered["revenue_kafka"]) == ("", "")


def test_the_definition_for_weir_fits_the_pipeline(folder: Path) -> None:
    document = definition.read(folder / "revenue.yaml")
    pipeline = module(folder, "revenue")["PIPELINE"]
    assert document["pipeline"] == pipeline.name
    assert pipeline.dataflow(document["params"], CONTEXT).compile(document["parallelism"])
    assert msgspec.convert(document["settings"], JobSettings).checkpoint_interval_ms == 1_000


def test_the_changed_job_goes_on_with_the_open_window(folder: Path, tmp_path: Path) -> None:
    """The uids stay, so the state of the source and of the window is found again."""
    code = module(folder, "revenue")
    orders, output = tmp_path / "orders", tmp_path / "revenue"
    params = code["RevenueParams"](orders_dir=str(orders), output_dir=str(output))
    write(orders, "1.jsonl", FIRST_ORDERS)
    with running(code["build"](params, CONTEXT).compile(1), tmp_path / "state") as run:
        run.wait_for(lambda: sums(output) == FIRST_SUMS)
        savepoint = run.end("stop")

    changed = re.findall(r"(?ms)^```python\n(.*?)^```", PAGE)[-1]
    exec("import pyarrow.compute as pc\n" + changed, code)
    write(orders, "2.jsonl", NEXT_ORDERS)
    records = MemoryRunStore(token=Token(2), restore_from=savepoint)
    with running(code["build"](params, CONTEXT).compile(1), tmp_path / "state", records) as run:
        run.wait_for(lambda: len(sums(output)) > len(FIRST_SUMS))
        run.end("drain")  # the window of 10:02 is too small for the new step
    assert sums(output) == [*FIRST_SUMS, ("10:01", "north", 20, 1)]


def test_the_pipeline_of_kafka_reads_a_topic(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder / "my-jobs"))
    code = module(folder, "revenue_kafka")
    with running_broker() as broker:
        topic, output = broker.topic(), tmp_path / "revenue"
        broker.produce(topic, [line.encode() for line in FIRST_ORDERS])
        params = code["KafkaParams"](servers=broker.servers, topic=topic, output_dir=str(output))
        with running(code["build"](params, CONTEXT).compile(2), tmp_path / "state") as run:
            run.wait_for(lambda: sums(output) == FIRST_SUMS)
            run.end("drain")
    assert sums(output) == [*FIRST_SUMS, ("10:01", "north", 20, 1)]

    login = msgspec.structs.replace(params, user="weir")
    flow = code["build"](login, CONTEXT)
    flow.compile(2)
    assert flow.sources["orders"].options["sasl.password"] == "${secret:orders-kafka}"
