"""A running job whose folders become symbolic links out of WEIR_DATA_ROOTS fails at once, without a restart."""

from pathlib import Path

import pytest

from runtime.connectors.formats.lines import LineFormat
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.core.job.restart_strategy import FixedDelay
from runtime.dataflow.builder import Dataflow
from runtime.errors import JobRejected
from runtime.master.shared_folders import check_roots
from tests.contracts.files import drop
from tests.jobs.live import running


@pytest.mark.parametrize("swapped", ["in", "in that did not exist", "out", "out without rows"])
def test_the_run_fails_finally_naming_folder_and_operator(
    tmp_path: Path, swapped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, foreign, end = tmp_path / "data", tmp_path / "foreign", swapped.split(maxsplit=1)[0]
    data.mkdir()
    drop(foreign, "key", "swordfish\n")
    if swapped != "in that did not exist":
        drop(data / "in", "a", "public\n")
    monkeypatch.setenv("WEIR_DATA_ROOTS", str(data))
    flow = Dataflow("copying")
    source = DirectorySource(str(data / "in"), LineFormat())
    flow.source("reads", source).sink("writes", ParquetSink(str(data / "out")))
    job = flow.compile(2)
    with running(job, tmp_path / "state", restart=FixedDelay(attempts=5, delay_ms=10)) as run:
        run.checkpoints()
        if (data / end).exists():
            (data / end).rename(data / f"{end}.old")
        (data / end).symlink_to(foreign)
        if swapped == "out":
            drop(data / "in", "b", "more\n")
        run.join()
    failure = str(run.records.failure)
    assert f"{data / end}" in failure  # or the commit log in it, where the commit comes first
    assert "is not a folder that jobs may use" in failure
    assert {"in": "reads", "out": "writes"}[end] in failure
    assert "swordfish" not in failure
    assert len(run.records.attempts) <= 2, "it is final; the swap may cut a commit off before it is seen"
    assert [path.name for path in foreign.iterdir()] == ["key"]
    with pytest.raises(JobRejected, match={"in": r"reads\.path", "out": r"writes\.path"}[end]):
        check_roots(job)
