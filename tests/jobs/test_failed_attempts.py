"""What a failed attempt leaves to the next one: positions, output half committed, output that was never committed."""

from collections import Counter as Multiset
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from runtime.connectors.sinks.file_committer import FileCommitter
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sinks.print import PrintSink
from runtime.core.attempt.events import OperationRequest
from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.commit import CommitPermit, pending_committables
from runtime.core.snapshot.manifest import Manifest
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.errors import EnvironmentFailure
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.aggregates import Count, Sum
from runtime.ports import Collector, Operator, OperatorContext, Sink
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import Run, positions_in, running, with_operator
from tests.jobs.numbers import Numbers, committed, expected_counts, final_counts
from tests.shared import Notes, Shared
from tests.waiting import until

ASKED = CoordinatorSettings(interval_ms=None, min_pause_ms=0)  #: checkpoints only when the test wants one
AGAIN = FixedDelay(attempts=100, delay_ms=30)


def job(source: Gated, bomb: Bomb, parallelism: int, *, out: Sink, table: Sink | None = None) -> CompiledJob:
    """Running counts over `source` with a bomb before them; and a small bounded branch, where `table` takes it."""
    flow = Dataflow("counts")
    numbers = flow.source("numbers", source).map_batches("bomb", bomb)
    counted = numbers.key_by("key").aggregate("counts", {"n": Count(), "total": Sum("value")})
    counted.sink("out", out)
    if table is not None:
        flow.source("table", Numbers(total=50)).sink("other", table)
    return flow.compile(parallelism)


def exact(source: Gated, output: Path) -> bool:
    return final_counts(output) == expected_counts(source.numbers)


def test_recovery_starts_from_the_newest_checkpoint_after_a_bounded_source_has_ended(
    tmp_path: Path, jobs: Jobs
) -> None:
    """S0-12, S3-50, S4-47: checkpoints go on, and nothing is read again from before the newest of them."""
    source, bomb, storage, output = Gated(total=100), Bomb(), tmp_path / "state", tmp_path / "out"
    compiled_job = job(source, bomb, 2, out=ParquetSink(str(output)), table=ParquetSink(str(tmp_path / "table")))
    with jobs.running(compiled_job, storage, restart=AGAIN) as run:
        run.wait_for(lambda: run.manifests and "table" in run.manifests[-1].finished_operators())
        for total in (200, 300, 400):
            source.total = total
            run.wait_for(lambda: positions_in(run.manifests[-1], storage, source.splits) == [source.total] * 4)
        newest = run.manifests[-1].checkpoint
        bomb.arm()
        source.total = 500
        run.wait_for(lambda: any(m.token == 2 for m in run.manifests) and exact(source, output))
        run.end("drain")
    openings = [opening for opening in source.opened if opening.token == 2]
    assert {split: at for opening in openings for split, at in opening.positions.items()} == dict.fromkeys(
        range(4), 400
    )
    assert all(m.checkpoint > newest for m in run.manifests if m.token == 2)
    assert exact(source, output)


def test_inside_the_job_all_is_exact_while_what_was_printed_is_printed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S1-02, S1-01: the guarantee ends where the target takes no part; so the sink says so."""
    source, bomb, output = Gated(total=50), Bomb(), tmp_path / "out"
    flow = Dataflow("both")
    keyed = flow.source("numbers", source).map_batches("bomb", bomb).key_by("key")
    updates = keyed.aggregate("counts", {"n": Count(), "total": Sum("value")})
    updates.sink("out", ParquetSink(str(output)))
    updates.sink("printed", PrintSink("> "))
    lines: list[str] = []

    def everything_is_printed() -> bool:
        lines.extend(line for line in capsys.readouterr().out.splitlines() if line.startswith("> "))
        return sum(f'"n":{n},"total":{total}}}' in "\n".join(lines) for n, total in goal.values()) == len(goal)

    with running(flow.compile(1), tmp_path / "state", settings=ASKED, restart=AGAIN) as run:
        for total, then in ((50, "checkpoint"), (100, "bomb")):
            source.total, goal = total, expected_counts(Numbers(total=total, splits=source.splits))
            run.wait_for(everything_is_printed)
            if then == "checkpoint":
                run.ask("checkpoint")
                run.wait_for(lambda: run.manifests)
        bomb.arm()
        source.total = 120
        goal = expected_counts(source.numbers)
        run.wait_for(everything_is_printed)
        run.end("drain")
    assert max(Multiset(lines).values()) == 2, "the rows behind the checkpoint came again"
    assert exact(source, output)
    assert (PrintSink.guarantee, ParquetSink.guarantee) == ("at-least-once", "exactly-once")


# ---------------------------------------------------------------- output half committed


class Health(Shared):
    """Of a folder that takes no names until the test heals it."""

    def __init__(self) -> None:
        self._healed = False

    def heal(self) -> None:
        self._healed = True

    def is_healed(self) -> bool:
        return self._healed


class Stubborn(FileCommitter):
    """Cannot show the files of subtask 1 until it is healed."""

    def __init__(self, folder: Path, health: Health) -> None:
        super().__init__(folder)
        self._health = health

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        if not self._health.is_healed() and any("-out-1-" in each["final"] for each in committables):
            easy = [each for each in committables if "-out-1-" not in each["final"]]
            super().commit(permit, easy)
            raise EnvironmentFailure("the folder takes no more names")
        return super().commit(permit, committables)


class StubbornSink(ParquetSink):
    def __init__(self, path: str, health: Health) -> None:
        super().__init__(path)
        self._health = health

    def committer(self) -> FileCommitter:
        return Stubborn(Path(self.path), self._health)


def finals(manifest: Manifest) -> set[str]:
    return {each["final"] for committables in pending_committables(manifest).values() for each in committables}


def test_a_commit_that_fails_in_one_subtask_is_repeated_after_a_restart(tmp_path: Path, jobs: Jobs) -> None:
    """S1-31, S1-49: what is visible is of completed checkpoints; while one subtask fails, in part; at last, whole."""
    source, output = Gated(total=300), tmp_path / "out"
    health = Health()
    with jobs.running(
        job(source, Bomb(), 3, out=StubbornSink(str(output), health)), tmp_path / "state", restart=AGAIN
    ) as run:
        run.wait_for(lambda: run.records.token > 3)
        visible = {path.name for path in output.glob("part-*")}
        promised = set[str]().union(*map(finals, run.manifests))
        assert visible, "the other subtasks have committed"
        assert visible < promised
        assert not [name for name in visible if "-out-1-" in name]
        assert all("takes no more names" in reason for _, _, reason in run.records.attempts)
        health.heal()
        run.wait_for(lambda: exact(source, output))
        run.end("drain")
    promised = set[str]().union(*map(finals, run.manifests))
    assert {path.name for path in output.glob("part-*")} == promised
    assert exact(source, output)


def test_the_output_of_a_checkpoint_becomes_visible_with_its_completion(tmp_path: Path, jobs: Jobs) -> None:
    """S1-29: files of several subtasks are one unit, which no file enters later and none leaves.

    While they are renamed, one after the other, a reader of the folder sees some: it has no transaction.
    """
    source, output = Gated(total=0), tmp_path / "out"

    def visible() -> set[str]:
        return {path.name for path in output.glob("part-*")}

    with jobs.running(job(source, Bomb(), 3, out=ParquetSink(str(output))), tmp_path / "state", settings=ASKED) as run:
        for number in (1, 2, 3):
            _a_checkpoint_later(run, source, 100 * number, visible)
            unit = finals(run.manifests[-1])
            assert {name.split("-")[4] for name in unit} == {"0", "1", "2"}, "each subtask has its part in it"
            assert visible() == set[str]().union(*map(finals, run.manifests))
            assert exact(source, output)
        run.end("cancel")


def _a_checkpoint_later(run: Run, source: Gated, total: int, visible: Callable[[], set[str]]) -> None:
    """Rows up to `total` arrive at the sinks and stay hidden; then a checkpoint completes and shows its files."""
    before = visible()
    source.total = total
    run.wait_for(lambda: run.operator("numbers").get("records_out") == 4 * total)
    assert visible() == before, "rows behind the last barrier are hidden"
    run.records.operations.append(OperationRequest(f"asked-{total}", "checkpoint"))
    run.master.poke()
    run.wait_for(lambda: len(visible()) == len(before) + 3)


# ---------------------------------------------------------------- output that nobody owes


class FailsInSnapshot(Operator):
    """Subtask 1 fails in the first snapshot that is taken when another subtask has prepared output for it."""

    def __init__(self, output: Path, failures: Notes) -> None:
        self._output, self._failures = output, failures

    def open(self, context: OperatorContext) -> None:
        self._fails = context.index == 1

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(batch)

    def snapshot(self, checkpoint: int) -> None:
        if self._fails and not self._failures.values:
            until(lambda: any(self._output.glob(".weir-passing-1-out-*.pending")))
            self._failures.add(checkpoint)
            raise RuntimeError("no snapshot")


def listing(folder: Path) -> set[str]:
    """Output, in all its states. While slots start, the marker of `master/shared_folders` may lie beside it."""
    return {path.name for path in folder.iterdir() if "-marker-" not in path.name} if folder.is_dir() else set()


def test_on_restore_the_folder_is_brought_back_too(tmp_path: Path, jobs: Jobs) -> None:
    """S1-13, S1-39, S1-50, S1-54: before the next attempt opens anything.

    What no manifest names is gone, the rest is visible, and files of others stay.
    """
    output = tmp_path / "out"
    source = Gated(total=200, note=lambda: listing(output))
    flow = Dataflow("passing")
    numbers = flow.source("numbers", source)
    dealt = numbers.partition_custom(lambda batch, slots: np.asarray(batch["key"]) % slots, "key")
    passed = dealt.map_batches("passes", lambda batch: batch)  # slots that exchange nothing would restart apart
    passed.sink("out", ParquetSink(str(output)))
    failures = Notes()
    output.mkdir()
    foreign = {".weir-other-1-out-0-1.pending", ".weir-passing-1-other-0-1.pending", "notes.txt"}
    for name in foreign:
        (output / name).touch()
    compiled_job = with_operator(flow.compile(2), "passes", lambda: FailsInSnapshot(output, failures))
    with jobs.running(compiled_job, tmp_path / "state", settings=ASKED, restart=AGAIN) as run:
        run.wait_for(lambda: run.operator("out").get("records_in") == 4 * 200)
        run.ask("checkpoint")
        run.wait_for(lambda: any(opening.token == 2 for opening in source.opened))
        assert not run.manifests, "that checkpoint never came to be"
        run.wait_for(lambda: run.records.live["restarts"] == 1 and run.operator("out").get("records_in") == 4 * 200)
        run.end("drain")
    openings = [opening for opening in source.opened if opening.token == 2]
    assert [opening.noted for opening in openings] == [foreign] * 2, "of other jobs and sinks, and of people"
    assert sorted(row["value"] for row in committed(output)) == sorted(list(range(200)) * 4)


# ---------------------------------------------------------------- state of an author's own operator


class Remembering(Operator):
    """Keeps what it has seen in memory and puts it into a list at a snapshot."""

    def __init__(self, lives: Notes) -> None:
        self._lives = lives

    def open(self, context: OperatorContext) -> None:
        self._list = context.state.list_state("seen")
        self._seen = self._list.get()
        life = (context.token, context.index, context.parallelism, context.restored, list(self._seen))
        self._lives.add(life)

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._seen += batch.column("value").to_pylist()
        out.emit(batch)

    def snapshot(self, checkpoint: int) -> None:
        self._list.replace(self._seen)


def test_an_operator_is_called_at_the_snapshot_and_told_what_it_was_given_back(tmp_path: Path, jobs: Jobs) -> None:
    """S1-33, S1-17, S3-32, S3-33, S3-34: over a stop and rescales 2, 3, 1; a user's state beside that of a source."""
    source, lives = Gated(total=40), Notes()
    flow = Dataflow("remembering")
    flow.source("numbers", source).map_batches("seen", lambda batch: batch).sink("out", PrintSink())
    folder = ""
    for attempt, parallelism in enumerate((2, 3, 1)):
        records = MemoryRunStore(token=Token(10 * attempt + 1), restore_from=folder or None)
        compiled_job = with_operator(flow.compile(parallelism), "seen", lambda: Remembering(lives))
        with jobs.running(compiled_job, tmp_path / "state", records, settings=ASKED) as run:
            goal = 4 * 40 if attempt == 0 else 4 * 20
            run.wait_for(lambda goal=goal: run.operator("out").get("records_in", 0) == goal)  # type: ignore[misc]
            folder = run.end("stop")
        operators = run.manifests[-1].operators
        assert operators["numbers"].subtasks[0].keyed
        assert operators["seen"].subtasks[0].lists
        attempt_lives = [life for life in lives.values if life[0] == records.token]
        assert sorted((index, of) for _, index, of, _, _ in attempt_lives) == [
            (i, parallelism) for i in range(parallelism)
        ]
        assert {restored for _, _, _, restored, _ in attempt_lives} == {attempt > 0}
        values = sorted(value for life in attempt_lives for value in life[4])
        before = [] if attempt == 0 else sorted(list(range(source.total - 20)) * 4)
        assert values == before, "each entry once, and none of an older snapshot"
        source.total += 20
