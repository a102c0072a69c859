"""Epochs that wait for a sink which the restored version lacks."""

from pathlib import Path

import pytest

from runtime.connectors.commit_log import CommitLog, Epoch, LoggedFile
from runtime.connectors.names import original, safe
from runtime.connectors.sinks.epoch_stage import EpochStage
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import OperatorId
from runtime.errors import JobRejected
from runtime.master.undelivered import check_delivered
from runtime.ports import Sink

UID = OperatorId("tables-1")


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    """Of a lineage whose sink has two epochs to deliver, beside a source's folder."""
    (tmp_path / "lines").mkdir()
    log = CommitLog(tmp_path / safe(UID))
    for number in (1, 2):
        file = LoggedFile(f"part-7-1-{safe(UID)}-0-{number}-0.parquet", 10, 5)
        log.put(
            Epoch(
                log="a", job="7", sink=safe(UID), number=number, token=1, checkpoint=number, highest=(1, number),
                files=(file,),
            )
        )  # fmt: skip
    return tmp_path


def test_a_version_without_the_sink_is_refused_until_its_epochs_are_delivered(streams: Path) -> None:
    lacking: list[dict[OperatorId, Sink]] = [{}, {OperatorId("renamed"): EpochStage(print)}, {UID: ParquetSink("/out")}]
    for sinks in lacking:
        with pytest.raises(JobRejected, match="2 committed epochs") as refused:
            check_delivered(streams, sinks)
        assert (refused.value.code, refused.value.field) == ("undelivered-epochs", UID)
    CommitLog(streams / safe(UID)).release("7", safe(UID), 2)
    check_delivered(streams, {})


def test_a_version_that_has_the_sink_goes_on(streams: Path) -> None:
    check_delivered(streams, {UID: EpochStage(print)})
    check_delivered(streams / "of a first run", {})


@pytest.mark.parametrize("name", ["a", "a-b", "1~2", "ä.b/c"])
def test_the_original_of_a_safe_name(name: str) -> None:
    assert original(safe(name)) == name
