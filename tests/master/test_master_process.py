"""What the job master on Spark makes of the settings that the console stored."""

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime.access.data_roots import DataRoots
from runtime.connectors.sinks.discard import DiscardSink, DiscardWriter
from runtime.core.job.code_identity import CodeIdentity
from runtime.core.job.ids import Token
from runtime.core.job.settings import JobSettings
from runtime.dataflow.pipelines import PipelineContext
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io.postgres.store import PostgresRunStore, RunRow
from runtime.master.master_process import compile_job, record_code, redaction_of, settings_of
from runtime.operators.sink import SinkOperator
from spark_jobs.stages.compile import compile_graph


def row(params: dict[str, object] | None = None, **settings: Any) -> RunRow:
    return RunRow(
        job_id=1,
        lineage=1,
        job_name="words",
        version_id=1,
        version_parallelism=1,
        parallelism=1,
        max_parallelism=128,
        pipeline="wordcount",
        params=params or {},
        settings=settings,
        state="starting",
        token=1,
        allow_unmapped=False,
        discards_output=False,
        has_checkpoint=False,
    )


def test_what_is_left_out_has_its_default() -> None:
    assert settings_of(row(retained_checkpoints=2)) == JobSettings(retained_checkpoints=2)


@pytest.mark.parametrize("settings", [{"of_newer_software": 1}, {"retained_checkpoints": 0}, {"restart_strategy": "?"}])
def test_settings_that_this_software_cannot_obey_end_the_run_instead_of_killing_masters(
    settings: dict[str, Any],
) -> None:
    with pytest.raises(JobRejected) as error:
        settings_of(row(**settings))
    assert (error.value.code, error.value.field) == ("bad-settings", "settings")


def test_a_folder_that_has_become_a_link_out_of_the_data_roots_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version was compiled when `out` was a folder; the run looks again."""
    monkeypatch.setenv("WEIR_DATA_ROOTS", str(tmp_path / "data"))
    monkeypatch.setenv("WEIR_INPUTS", str(tmp_path / "inputs"))
    out = tmp_path / "data" / "out"
    out.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    run_row = row({"lines_dir": str(tmp_path / "data" / "in"), "output_dir": str(out)})
    assert compile_job(run_row)[0].sinks
    out.rmdir()
    out.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JobRejected) as error:
        compile_job(run_row)
    assert (error.value.code, error.value.field) == ("path-not-allowed", "output_dir")


def test_a_clone_discards_the_rows_of_every_sink_under_its_uid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_DATA_ROOTS", str(tmp_path))
    monkeypatch.setenv("WEIR_INPUTS", str(tmp_path / "inputs"))
    run_row = row({"lines_dir": str(tmp_path / "in"), "output_dir": str(tmp_path / "out")})
    (job, code), (isolated, of_clone) = compile_job(run_row), compile_job(replace(run_row, discards_output=True))
    assert code == of_clone
    assert not job.is_isolated
    assert isolated.is_isolated
    assert job.sinks.keys() == isolated.sinks.keys()
    assert [operator.uid for operator in job.graph.operators] == [o.uid for o in isolated.graph.operators]
    for uid, sink in isolated.sinks.items():
        assert isinstance(sink, DiscardSink)
        operator = isolated.operators[uid]()
        assert isinstance(operator, SinkOperator)
        assert isinstance(operator._writer, DiscardWriter)


def test_the_code_of_a_run_is_that_of_its_version_at_another_parallelism(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package and the digest of the graph, as the compile stage stores them with the version."""
    monkeypatch.setenv("WEIR_DATA_ROOTS", str(tmp_path))
    monkeypatch.setenv("WEIR_INPUTS", str(tmp_path / "inputs"))
    params: dict[str, object] = {"lines_dir": str(tmp_path / "in"), "output_dir": str(tmp_path / "out")}
    _, code = compile_job(replace(row(params), parallelism=3))
    context = PipelineContext("", DataRoots.of_environment({"WEIR_DATA_ROOTS": str(tmp_path)}))
    assert compile_graph("wordcount", params, context, 1, 128)["graph"]["code"] == msgspec.to_builtins(code)
    assert (code.package, code.version) == ("weir-streams-examples", version("weir-streams-examples"))
    assert compile_graph("wordcount", params, context, 1, 64)["graph"]["code"]["graph"] != code.graph


class NoDatabase(PostgresRunStore):
    def record_code(self, code: CodeIdentity) -> None:
        raise EnvironmentFailure("Postgres cannot be reached")


def test_a_run_starts_although_its_code_cannot_be_recorded() -> None:
    record_code(NoDatabase("", 1, Token(1), 128), CodeIdentity(package="weir", version="1", graph=""))


def test_the_records_of_a_run_mask_the_secrets_that_its_parameters_refer_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark task resolves a reference, and Spark passes its error to the job master."""
    monkeypatch.setenv("WEIR_SECRET_ORDERS", "fish-and-chips")
    redact = redaction_of(row({"url": "postgresql://app:${secret:orders}@db/orders"}))
    record = redact({"message": "no way to postgresql://app:fish-and-chips@db/orders"})
    assert record == {"message": "no way to postgresql://app:********@db/orders"}
