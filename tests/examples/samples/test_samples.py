"""The command line of the samples, and the pages of the examples."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from examples.environment import Environment
from examples.samples import commands
from examples.samples.check import json_table
from examples.samples.commands import SAMPLES
from stack.settings import ROOT

PAGES = ROOT / "docs/examples"


def test_input_is_written_below_the_first_data_root_and_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEIR_DATA_ROOTS", f"{tmp_path}:/elsewhere")
    environment = Environment(tmp_path, {})
    assert commands.prepare(environment, "clickstream") == 0
    assert list((tmp_path / "examples/clickstream/clicks").iterdir()) == []
    assert commands.feed(environment, "clickstream", 0) == 0
    written = {path.name: path.read_bytes() for path in (tmp_path / "examples/clickstream/clicks").iterdir()}
    assert commands.feed(environment, "clickstream", 0) == 0
    assert written == {path.name: path.read_bytes() for path in (tmp_path / "examples/clickstream/clicks").iterdir()}
    assert commands.check(environment, "clickstream") == 1, "no job has run"
    assert "missing in sessions" in capsys.readouterr().out


def test_clicks_are_out_of_order_within_the_bound_but_for_stragglers(tmp_path: Path) -> None:
    """The bound holds for each file alone, since a job reads files in parallel."""
    sample = SAMPLES["clickstream"]
    sample.prepare(tmp_path, "")
    for step in range(sample.steps):
        sample.write_step(tmp_path, "", step)
    table = sample.tables(tmp_path, "")["clicks"]
    lags, newest = [], 0
    for path in sorted((tmp_path / "clicks").iterdir()):
        folder = tmp_path / path.stem
        folder.mkdir()
        path.rename(folder / path.name)
        for at in json_table(folder, table.schema)["clicked_at"].cast("int64").to_pylist():
            newest = max(newest, at)
            lags.append(newest - at)
    assert 0 < sum(lag > 60_000 for lag in lags) < len(lags) / 50
    assert sum(0 < lag <= 60_000 for lag in lags) > len(lags) / 2


@pytest.mark.parametrize("name", SAMPLES)
def test_every_example_is_registered_and_has_a_page(name: str) -> None:
    project = tomllib.loads((ROOT / "examples/pyproject.toml").read_text())["project"]
    points = project["entry-points"]["weir.pipelines"]
    assert points[name] == f"examples.pipelines.{name}:PIPELINE"
    page = (PAGES / f"{name}.md").read_text()
    for link in (f"examples/pipelines/{name}.py", f"examples/samples/{name}.sql"):
        assert f"(../../{link})" in page
        assert (ROOT / link).exists()
    for command in ("feed", "check"):
        assert f"-m examples {command} {name}" in page
    assert f"[{name}]({name}.md)" in (PAGES / "README.md").read_text()


def test_the_examples_are_of_the_version_that_they_need_and_the_product_has_none() -> None:
    product, examples = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in (".", "examples")
    )
    requirement = next(each for each in examples["dependencies"] if each.startswith(product["name"]))
    assert requirement.endswith(f"=={product['version']}")
    assert examples["version"] == product["version"]
    assert "entry-points" not in product
