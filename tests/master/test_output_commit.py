"""Jobs whose checkpoints may take longer than a target keeps prepared output are refused at the start."""

from pathlib import Path
from typing import Final

import pytest

import weir
from runtime.core.job.ids import OperatorId
from runtime.core.job.settings import CoordinatorSettings
from runtime.errors import JobRejected, WeirError
from runtime.master.output_commit import Sinks, check_expiry
from tests.jobs.numbers import Numbers

KAFKA: Final = weir.KafkaSink("127.0.0.1:1", "t", weir.KafkaJson(), transaction_timeout_ms=60_000)


def settings(interval_ms: int | None, timeout_ms: int, min_pause_ms: int = 0) -> CoordinatorSettings:
    return CoordinatorSettings(interval_ms=interval_ms, timeout_ms=timeout_ms, min_pause_ms=min_pause_ms)


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        (settings(20_000, 39_999), False),
        (settings(20_000, 40_000), True),
        (settings(100, 30_000, min_pause_ms=30_000), True),
        (settings(None, 60_000), False),
    ],
)
def test_interval_and_time_out_of_checkpoints_must_fit_a_transaction(
    settings: CoordinatorSettings, is_refused: bool
) -> None:
    sinks: Sinks = {OperatorId("out"): KAFKA, OperatorId("files"): weir.ParquetSink("/out")}
    if not is_refused:
        check_expiry(sinks, settings)
        return
    with pytest.raises(JobRejected, match="out: its target drops output that is not committed within 60000 ms"):
        check_expiry(sinks, settings)


def test_a_job_with_output_that_may_expire_ends_before_it_starts(tmp_path: Path) -> None:
    """The broker is away, and no slot has tried to reach it."""
    flow = weir.Dataflow("expiring")
    flow.source("numbers", Numbers(total=10)).sink("out", KAFKA)
    with pytest.raises(WeirError, match="raise the time-out of the sink"):
        weir.run_local(flow, storage=str(tmp_path), settings=settings(5_000, 60_000))
