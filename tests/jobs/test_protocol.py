"""The protocol of checkpoints between a live master and live subtasks: each event of a running job and its effects."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.attempt.effects import ChangeState
from runtime.core.attempt.events import ReportReceived, SlotDeployed
from runtime.core.checkpoint.effects import NotifyCompleted, StoreManifest
from runtime.core.checkpoint.events import IdIssued, ManifestRecorded
from runtime.core.job.lifecycle import RunEvent
from runtime.core.job.messages import Barrier, CheckpointKind, EndOfData, EndOfPartition, Records
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.control import Acknowledgement, LogicFinished, SubtaskEnded, TriggerSubtask
from runtime.core.snapshot.manifest import Manifest
from runtime.core.subtask.effects import (
    Broadcast,
    CaptureState,
    Close,
    CommitOutput,
    PreparePreBarrier,
    ProcessRecords,
)
from runtime.core.subtask.events import CheckpointCompleted, Triggered
from runtime.dataflow.builder import Dataflow
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Gated
from tests.jobs.live import Run, positions_in
from tests.jobs.observed import Journal, Trace, Turn, observed, traced

INTERVAL_MS = 300
PERIODIC = CoordinatorSettings(interval_ms=INTERVAL_MS, min_pause_ms=0)
SUBTASKS = [(uid, index) for uid in ("middle", "numbers", "out") for index in (0, 1)]
SPLITS = 4


@dataclass(frozen=True)
class Protocol:
    """A job over a shuffle at parallelism 2 that took checkpoints, a savepoint, a checkpoint, and was stopped."""

    journal: Journal
    trace: Trace
    run: Run
    storage: Path

    @property
    def checkpoints(self) -> list[Manifest]:
        return [manifest for manifest in self.run.manifests if manifest.kind is CheckpointKind.CHECKPOINT]

    @property
    def stop(self) -> Manifest:
        return self.run.manifests[-1]


@pytest.fixture(scope="module")
def protocol(tmp_path_factory: pytest.TempPathFactory, jobs: Jobs) -> Iterator[Protocol]:
    folder, source, trace = tmp_path_factory.mktemp("protocol"), Gated(total=50, splits=SPLITS), Trace()
    flow = Dataflow("protocol")
    keyed = flow.source("numbers", source).key_by("key")
    middle = keyed.batches("middle", lambda batch: batch, max_rows=1_000, max_wait_ms=60_000, flush_on_barrier=True)
    middle.sink("out", ParquetSink(str(folder / "out")))
    with observed() as journal:
        with jobs.running(traced(flow.compile(2), trace), folder / "state", settings=PERIODIC) as run:
            for _ in range(4):
                source.total += 50
                run.checkpoints(1)
            run.ask("savepoint")
            run.wait_for(lambda: "savepoint" in run.records.settled)
            source.total += 50
            run.checkpoints(1)
            run.end("stop")
        yield Protocol(journal, trace, run, folder / "state")


def barriers(turns: list[Turn]) -> list[int]:
    """The checkpoints of the barriers that a subtask has sent, in order."""
    effects = [effect for turn in turns for effect in turn.effects if isinstance(effect, Broadcast)]
    return [effect.message.checkpoint for effect in effects if isinstance(effect.message, Barrier)]


def kinds(effects: tuple[Any, ...]) -> list[type]:
    return [type(effect.message) if isinstance(effect, Broadcast) else type(effect) for effect in effects]


# ---------------------------------------------------------------- the master


def test_checkpoints_begin_at_a_fixed_rate_an_interval_after_the_start(protocol: Protocol) -> None:
    """S2-07, S2-26: the last slot that is deployed starts the schedule; it does not drift with the checkpoints."""
    deployed = [turn for turn in protocol.journal if isinstance(turn.event, SlotDeployed)]
    assert [turn.next_trigger is None for turn in deployed] == [True, False]
    started = deployed[-1].event.at
    due = sorted({turn.next_trigger for turn in protocol.journal if turn.next_trigger is not None})
    assert due[0] == started + INTERVAL_MS
    assert len(due) >= 4
    assert all((at - started) % INTERVAL_MS == 0 for at in due)
    assert protocol.checkpoints[0].triggered_at >= started + INTERVAL_MS


def test_an_id_leads_to_a_pending_checkpoint_and_a_trigger_for_each_source(protocol: Protocol) -> None:
    """S2-25, S3-52, S4-22: no other subtask is triggered; all of them are waited for, and notified."""
    issued = [turn for turn in protocol.journal if isinstance(turn.event, IdIssued)]
    assert len(issued) == len(protocol.run.manifests)
    for turn in issued:
        checkpoint = turn.event.checkpoint
        triggers = [effect for effect in turn.effects if isinstance(effect, TriggerSubtask)]
        assert [(t.subtask.operator, t.subtask.index) for t in triggers] == [("numbers", 0), ("numbers", 1)]
        assert {t.barrier.checkpoint for t in triggers} == {checkpoint}
        assert turn.pending == (checkpoint,)
    for notified in protocol.journal.effects(NotifyCompleted):
        assert sorted((s.operator, s.index) for s in notified.subtasks) == SUBTASKS


def test_the_last_acknowledgement_stores_the_manifest_and_its_record_ends_the_checkpoint(protocol: Protocol) -> None:
    """S2-46, S2-48: an acknowledgement of each subtask, once; then the checkpoint is not pending any more."""
    for manifest in protocol.run.manifests:
        number = manifest.checkpoint
        answers = [
            turn
            for turn in protocol.journal
            if isinstance(turn.event, ReportReceived)
            and isinstance(turn.event.report, Acknowledgement)
            and turn.event.report.checkpoint == number
        ]
        assert sorted((t.event.subtask.operator, t.event.subtask.index) for t in answers) == SUBTASKS
        assert [any(isinstance(e, StoreManifest) for e in turn.effects) for turn in answers] == [False] * 5 + [True]
        assert all(number in turn.pending for turn in answers)
        recorded = protocol.journal.turn_of(ManifestRecorded, checkpoint=number)
        assert number not in recorded.pending


def test_a_single_loop_handles_every_message_in_turn(protocol: Protocol) -> None:
    """S2-57: those of slots, of the database and of the timer."""
    assert len({turn.thread for turn in protocol.journal}) == 1


def test_a_stop_ends_the_schedule(protocol: Protocol) -> None:
    """S2-08, S2-27: from the request on no trigger is due, and no checkpoint begins but the savepoint."""
    journal = protocol.journal
    asked = next(at for at, turn in enumerate(journal) if ChangeState(RunEvent.STOP_REQUESTED) in turn.effects)
    assert journal[asked - 1].next_trigger is not None
    assert {turn.next_trigger for turn in journal[asked:]} == {None}
    ids = [turn.event.checkpoint for turn in journal[asked:] if isinstance(turn.event, IdIssued)]
    assert ids == [protocol.stop.checkpoint]


# ---------------------------------------------------------------- barriers and snapshots


def test_a_trigger_lets_a_source_snapshot_and_send_the_barrier_in_one_step(protocol: Protocol) -> None:
    """S2-31, S3-57, S4-21, S4-23: from outside the graph; the barrier leaves before the state is copied."""
    for index in (0, 1):
        turns = [turn for turn in protocol.trace.of("numbers", index) if isinstance(turn.event, Triggered)]
        assert [turn.event.barrier.checkpoint for turn in turns] == [m.checkpoint for m in protocol.run.manifests]
        assert not [turn for turn in protocol.trace.of("numbers", index) if turn.message is not None]
        for turn in turns[:-1]:  # the last is the stop
            assert kinds(turn.effects) == [PreparePreBarrier, Barrier, CaptureState]


def test_a_channel_that_brought_its_barrier_waits_for_the_other(protocol: Protocol) -> None:
    """S4-18, S4-20, S4-25, S4-26, S4-27: the last one brings the barrier to the outputs, then the copy, then all."""
    for index in (0, 1):
        waited, after = 0, defaultdict[int, set[int]](set)
        turns = [turn for turn in protocol.trace.of("middle", index) if turn.message is not None]
        for number, turn in enumerate(turns):
            assert turn.event.channel not in turn.blocked
            if not isinstance(turn.message, Barrier) or turn.message.kind is not CheckpointKind.CHECKPOINT:
                continue
            if not turn.blocked:
                assert turn.effects == ()
                assert turns[number + 1].blocked == {turn.event.channel}
                waited += 1
            else:
                assert kinds(turn.effects) == [PreparePreBarrier, Barrier, CaptureState]
                assert not turns[number + 1].blocked
                after[turn.message.checkpoint] |= {t.event.channel.source for t in turns[number + 1 :]}
        assert waited == len(protocol.checkpoints)
        assert all(sources == {0, 1} for sources in after.values())


def test_a_channel_keeps_the_order_and_a_barrier_stands_where_it_was_sent(protocol: Protocol) -> None:
    """S3-45, S4-17: before barrier n come exactly the rows before the position of snapshot n, none lost or moved."""
    arrived = defaultdict[int, list[int]](list)  # split -> values
    before = defaultdict[int, dict[int, list[int]]](dict)  # checkpoint -> split -> values
    for index in (0, 1):
        values = defaultdict[tuple[Any, int], list[int]](list)
        for turn in protocol.trace.of("middle", index):
            if isinstance(turn.message, Records):
                for row in turn.message.payload.to_pylist():
                    split = (row["key"] - 31 * row["value"]) % 7
                    values[turn.event.channel, split].append(row["value"])
            elif isinstance(turn.message, Barrier):
                for (channel, split), seen in values.items():
                    if channel == turn.event.channel:
                        before[turn.message.checkpoint].setdefault(split, []).extend(seen)
        for seen in values.values():
            assert seen == sorted(seen)
        for (_, split), seen in values.items():
            arrived[split] += seen
    last = positions_in(protocol.stop, protocol.storage, SPLITS)
    assert [sorted(arrived[split]) for split in range(SPLITS)] == [list(range(position)) for position in last]
    for manifest in protocol.run.manifests:
        positions = positions_in(manifest, protocol.storage, SPLITS)
        assert [sorted(before[manifest.checkpoint][split]) for split in range(SPLITS)] == [
            list(range(position)) for position in positions
        ]


def test_every_subtask_hears_of_the_completion_and_may_commit(protocol: Protocol) -> None:
    """S2-54: of checkpoints and of the stop, and never of the plain savepoint."""
    numbers = [m.checkpoint for m in protocol.run.manifests if m.kind is not CheckpointKind.SAVEPOINT]
    for uid, index in SUBTASKS:
        turns = [turn for turn in protocol.trace.of(uid, index) if isinstance(turn.event, CheckpointCompleted)]
        assert [turn.event.permit.checkpoint for turn in turns] == numbers
        assert all(isinstance(turn.effects[0], CommitOutput) for turn in turns)


def test_a_slot_handles_triggers_on_the_thread_of_its_records(protocol: Protocol) -> None:
    """S2-35: not on the thread that reads the messages of the master, which go on arriving."""
    for index in (0, 1):
        turns = [turn for turn in protocol.trace.turns if turn.index == index]
        assert len({(turn.process, turn.thread) for turn in turns}) == 1
        assert {type(turn.event) for turn in turns} >= {Triggered, CheckpointCompleted}


# ---------------------------------------------------------------- the stop


def test_at_a_stop_all_subtasks_wait_for_the_same_savepoint(protocol: Protocol) -> None:
    """S0-37, S0-39, S0-70, S0-76: logic first, then its barrier and snapshot, then its completion, then the end."""
    number = protocol.stop.checkpoint
    assert protocol.stop.kind is CheckpointKind.STOP
    for uid, index in SUBTASKS:
        turns = protocol.trace.of(uid, index)
        effects = [effect for turn in turns for effect in turn.effects]
        finished = next(at for at, effect in enumerate(effects) if isinstance(effect, LogicFinished))
        assert effects[finished - 1] == Broadcast(EndOfData(drain=False))
        assert [c.barrier.checkpoint for c in effects[finished:] if isinstance(c, CaptureState)] == [number]
        assert turns[-1].event.permit.checkpoint == number
        assert kinds(turns[-1].effects) == [CommitOutput, Close, EndOfPartition, SubtaskEnded]
        assert [turn.phase for turn in turns[:-1]].count("ended") == 0
        assert barriers(turns)[-1] == number
        before_last = [turn for turn in turns if isinstance(turn.message, EndOfData)][:-1]
        assert all(turn.effects == () for turn in before_last), "the other input has not ended"


def test_nothing_is_processed_or_sent_behind_the_barrier_of_a_stop(protocol: Protocol) -> None:
    """S0-30, S0-33, S0-68: rows that the middle held are ahead of it, so the savepoint agrees with the output."""
    for uid, index in SUBTASKS:
        turns = protocol.trace.of(uid, index)
        at = next(n for n, turn in enumerate(turns) if protocol.stop.checkpoint in barriers([turn]))
        assert not [effect for turn in turns[at:] for effect in turn.effects if isinstance(effect, ProcessRecords)]
        for channel in {turn.event.channel for turn in turns if turn.message is not None}:
            arrived = [turn.message for turn in turns if turn.message is not None and turn.event.channel == channel]
            assert isinstance(arrived[-1], Barrier | EndOfPartition)
            behind = arrived[arrived.index(_stop_barrier(arrived)) + 1 :]
            assert all(isinstance(message, EndOfPartition) for message in behind)
    rows = {c["final"]: c["rows"] for manifest in protocol.run.manifests for c in _committables(manifest)}
    assert sum(rows.values()) == sum(positions_in(protocol.stop, protocol.storage, SPLITS))


def _stop_barrier(messages: list[Any]) -> Barrier:
    return next(m for m in messages if isinstance(m, Barrier) and m.kind is CheckpointKind.STOP)


def _committables(manifest: Manifest) -> list[Any]:
    return [c for snapshot in manifest.operators["out"].subtasks.values() for c in snapshot.committables]
