"""Checkpoints of a live loop: what its head logs, from its own snapshot until the barrier has come round."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import CheckpointId
from runtime.core.job.messages import Barrier, CheckpointKind, Records
from runtime.core.subtask.effects import Broadcast, CaptureState, CloseLog, LogFeedback, ProcessRecords
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Gated
from tests.jobs.live import Run
from tests.jobs.observed import Trace, Turn, observed, traced
from tests.jobs.test_loops import expected, logged, looping, written


@dataclass(frozen=True)
class Loop:
    """A loop at parallelism 2, with checkpoints while rows went round, and drained. The head is `loop`."""

    trace: Trace
    run: Run
    graph: JobGraph
    source: Gated
    output: Path

    def is_back(self, turn: Turn) -> bool:
        """Whether the turn is a message on a back-edge."""
        return turn.message is not None and self.graph.is_feedback(turn.event.channel)

    def of_head(self, index: int, checkpoint: int) -> list[Turn]:
        """The turns of a head from its snapshot to the end of its log. Its acknowledgement follows."""
        turns = self.trace.of("loop", index)
        first = next(n for n, turn in enumerate(turns) if _captures(turn, checkpoint))
        ends = [n for n, turn in enumerate(turns) if _ends_log(turn, checkpoint)]
        return turns[first : ends[0] + 1]

    @property
    def checkpoints(self) -> list[int]:
        return [m.checkpoint for m in self.run.manifests if m.kind is CheckpointKind.CHECKPOINT]


def _captures(turn: Turn, checkpoint: int) -> bool:
    return any(isinstance(e, CaptureState) and e.barrier.checkpoint == checkpoint for e in turn.effects)


def _logs(turn: Turn, checkpoint: int) -> bool:
    return any(isinstance(effect, LogFeedback) and checkpoint in effect.checkpoints for effect in turn.effects)


def _ends_log(turn: Turn, checkpoint: int) -> bool:
    return CloseLog(CheckpointId(checkpoint)) in turn.effects


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory, jobs: Jobs) -> Iterator[Loop]:
    folder, source, trace = tmp_path_factory.mktemp("loop"), Gated(total=0, batch=2), Trace()
    job = looping(source, folder / "out").compile(2)
    with observed():
        with jobs.running(traced(job, trace), folder / "state") as run:
            for _ in range(50):
                source.total += 100
                run.checkpoints(1)
                if sum(map(logged, run.manifests)) and len(run.manifests) >= 3:
                    break
            run.wait_for(lambda: written(folder / "out") == expected(source))
            run.end("drain")
        yield Loop(trace, run, job.graph, source, folder / "out")


def test_a_head_waits_for_its_regular_inputs_only(loop: Loop) -> None:
    """S4-29, S4-33: the barrier leaves before it has come round; otherwise no checkpoint of a loop would complete."""
    assert loop.checkpoints
    for index in (0, 1):
        turns = loop.trace.of("loop", index)
        for number in loop.checkpoints:
            sent = next(n for n, turn in enumerate(turns) if _captures(turn, number))
            assert not loop.is_back(turns[sent])
            back = [n for n, t in enumerate(turns) if loop.is_back(t) and _is_barrier(t.message, number)]
            assert back
            assert min(back) > sent
    assert written(loop.output) == expected(loop.source)


def _is_barrier(message: Any, checkpoint: int) -> bool:
    return isinstance(message, Barrier) and message.checkpoint == checkpoint


def test_a_head_logs_what_comes_round_from_its_snapshot_to_the_barrier_and_handles_it(loop: Loop) -> None:
    """S4-34, S4-35, S4-36, S4-37: per back-edge; the state was copied before the first of these records."""
    rows = 0
    for index in (0, 1):
        for number in loop.checkpoints:
            returned = set[Any]()
            for turn in loop.of_head(index, number)[1:]:
                if not loop.is_back(turn):
                    continue
                if _is_barrier(turn.message, number):
                    returned.add(turn.event.channel)
                if isinstance(turn.message, Records):
                    logs = [e for e in turn.effects if isinstance(e, LogFeedback) and number in e.checkpoints]
                    assert bool(logs) is (turn.event.channel not in returned)
                    assert any(isinstance(effect, ProcessRecords) for effect in turn.effects)
                    rows += sum(effect.records.rows for effect in logs)
            turns = loop.trace.of("loop", index)
            ended = next(n for n, turn in enumerate(turns) if _ends_log(turn, number))
            assert not [turn for turn in turns[ended:] if _logs(turn, number)]
    assert rows == sum(logged(m) for m in loop.run.manifests if m.checkpoint in loop.checkpoints) > 0


def test_a_head_answers_once_the_barrier_is_back_on_all_back_edges(loop: Loop) -> None:
    """S4-39: its part is complete only then."""
    for index in (0, 1):
        for number in loop.checkpoints:
            turns = loop.of_head(index, number)
            capture = next(e for e in turns[0].effects if isinstance(e, CaptureState))
            assert capture.logs
            assert Broadcast(capture.barrier) in turns[0].effects
            channels = {turn.event.channel for turn in loop.trace.of("loop", index) if loop.is_back(turn)}
            back = {turn.event.channel for turn in turns if loop.is_back(turn) and _is_barrier(turn.message, number)}
            assert back == channels
