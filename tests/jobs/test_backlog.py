"""Epochs that wait for the stage of a sink: they hold the sources and the end of the run, and none is lost."""

from pathlib import Path

import pyarrow.parquet as pq

from runtime.connectors.sinks.epoch_stage import EpochStage
from runtime.core.attempt.events import OperationRequest
from runtime.core.job.ids import CheckpointId
from runtime.dataflow.builder import Dataflow
from tests.jobs.gated import Gated
from tests.jobs.live import Run, running


def flow(source: Gated, stage: EpochStage) -> Dataflow:
    flow = Dataflow("backlog")
    flow.source("numbers", source).sink("out", stage)
    return flow


def a_stage(folder: Path, max_backlog: int) -> EpochStage:
    return EpochStage(lambda spark, frame, epoch: None, max_backlog, folder=str(folder), is_bound=True)


def deliver(stage: EpochStage, upto: int | None = None) -> list[int]:
    """Takes what waits, up to an epoch, as the stage of a run does. Returns the values."""
    log, values = stage.commit_log(), list[int]()
    for job, sink in log.sinks():
        for epoch in log.epochs(job, sink, [n for n in log.backlog(job, sink) if upto is None or n <= upto]):
            for file in epoch.files:
                values += pq.read_table(log.output / file.name)["value"].to_pylist()
            log.release(job, sink, epoch.number)
    return values


def newest_checkpoint(run: Run) -> CheckpointId:
    return max((CheckpointId(manifest.checkpoint) for manifest in run.manifests), default=CheckpointId(0))


def test_a_backlog_holds_the_sources_and_no_checkpoint(tmp_path: Path) -> None:
    source, stage = Gated(total=10), a_stage(tmp_path / "epochs", max_backlog=2)
    rows: list[int] = []
    with running(flow(source, stage).compile(2), tmp_path / "state") as run:
        for _ in range(3):  # epoch by epoch
            waiting = stage.backlog()
            run.wait_for(lambda waiting=waiting: stage.backlog() > waiting)  # type: ignore[misc]
            source.total += 10
        run.wait_for(lambda: run.operator("numbers").get("state") == "waits for a sink's stage")
        source.total += 100
        before, backlog = newest_checkpoint(run), stage.backlog()
        run.wait_for(lambda: newest_checkpoint(run) >= before + 5)
        assert stage.backlog() == backlog, "checkpoints complete, and no rows come"
        rows += deliver(stage)
        run.wait_for(lambda: run.operator("numbers").get("records_out", 0) >= source.total * source.splits)
        run.ask("drain")
        run.wait_for(run.records.final_savepoint)
        run.wait_for(lambda: stage.backlog() > 0)
        assert run.thread.is_alive(), "the run lasts until its epochs are delivered"
        run.wait_for(lambda: run.records.live.get("ending", {}).get("phase") == "delivery")
        assert run.records.live["ending"]["undelivered"] == {"out": stage.backlog()}
        assert run.operator("numbers")["records_out"] == source.total * source.splits, "the last numbers stay"
        while run.thread.is_alive():
            rows += deliver(stage)
            run.thread.join(0.05)
    assert run.records.failure is None
    assert sorted(rows) == sorted(list(range(source.total)) * source.splits)


def test_a_cancel_ends_the_wait_for_the_delivery(tmp_path: Path) -> None:
    source, stage = Gated(total=10), a_stage(tmp_path / "epochs", max_backlog=100)
    with running(flow(source, stage).compile(1), tmp_path / "state") as run:
        run.wait_for(lambda: run.operator("numbers").get("records_out", 0) >= source.total * source.splits)
        run.ask("drain")
        run.wait_for(run.records.final_savepoint)
        run.wait_for(lambda: stage.backlog() > 0)
        run.records.operations.append(OperationRequest("cancel", "cancel"))
        run.join()
    assert stage.backlog() > 0
    assert sorted(deliver(stage)) == sorted(list(range(source.total)) * source.splits), "a restore delivers them"
