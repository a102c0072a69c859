"""Epochs that wait for a sink which the restored version lacks."""

from pathlib import Path

import pytest

from runtime.connectors.commit_log import CommitLog, CommittedEpoch, LoggedFile
from runtime.connectors.names import decode_name, encode_name
from runtime.connectors.sinks.epoch_stage import EpochStage
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import OperatorId
from runtime.errors import JobRejected
from runtime.master.delivery_backlog import reject_undelivered_epochs
from runtime.ports import Sink

UID = OperatorId("tables-1")


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    """Of a lineage whose sink has two epochs to deliver, beside a source's folder."""
    (tmp_path / "lines").mkdir()
    log = CommitLog(tmp_path / encode_name(UID))
    for number in (1, 2):
        file = LoggedFile(f"part-7-1-{encode_name(UID)}-0-{number}-0.parquet", 10, 5)
        log.append_epoch(
            CommittedEpoch(
                log="a", job="7", sink=encode_name(UID), number=number, token=1, checkpoint=number, highest=(1, number),
                files=(file,),
            )
        )  # fmt: skip
    return tmp_path


def test_a_version_without_the_sink_is_refused_until_its_epochs_are_delivered(streams: Path) -> None:
    lacking: list[dict[OperatorId, Sink]] = [{}, {OperatorId("renamed"): EpochStage(print)}, {UID: ParquetSink("/out")}]
    for sinks in lacking:
        with pytest.raises(JobRejected, match="2 committed epochs") as error:
            reject_undelivered_epochs(streams, sinks)
        assert (error.value.code, error.value.field) == ("undelivered-epochs", UID)
    CommitLog(streams / encode_name(UID)).release("7", encode_name(UID), 2)
    reject_undelivered_epochs(streams, {})


def test_a_version_that_has_the_sink_goes_on(streams: Path) -> None:
    reject_undelivered_epochs(streams, {UID: EpochStage(print)})
    reject_undelivered_epochs(streams / "of a first run", {})


@pytest.mark.parametrize("name", ["a", "a-b", "1~2", "ä.b/c"])
def test_the_original_of_a_safe_name(name: str) -> None:
    assert decode_name(encode_name(name)) == name
