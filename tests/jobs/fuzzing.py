"""Random jobs that die, are moved and are rescaled at random, beside what their sources have read.

A case is a random graph over random rows (`random_graphs`) and a life: phases at a random parallelism, in each of which
rows arrive in bursts and faults happen, and from which the job is moved on by a stop, by a savepoint whose attempt goes
on writing, or by a takeover from a master that hangs while its slots go on. The last phase ends by a drain or by the
end of all input. Then each sink must hold exactly the rows that plain Python computes from what the sources have read,
and the commit log of its folder must name exactly its files. The job, its master and its slots are those of production.

Everything random comes from the seed of the case. The timing does not, so a case that differs prints what happened.

    python -m tests.jobs.fuzzing --cases 1000
"""

import argparse
import logging
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
import structlog

from runtime.connectors.commit_log import CommitLog
from runtime.connectors.sinks.file_committer import FileCommitter
from runtime.connectors.sinks.json_lines import JsonLinesSink
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.attempt.events import OperationRequest
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.restart_strategy import ExponentialDelay, FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE
from runtime.errors import EnvironmentFailure, WeirError
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.ports import Sink
from runtime.run_store import CompletedCheckpoint
from tests.jobs.live import PATIENCE_S, Run, running
from tests.jobs.random_graphs import SPLITS, Graph, Read
from tests.shared import Shared
from tests.small_states import DEPLOYMENT_OF_SLOTS, small_deployment
from tests.waiting import until

PERIODIC: Final = CoordinatorSettings(interval_ms=20, min_pause_ms=0)
ASKED: Final = CoordinatorSettings(interval_ms=None, min_pause_ms=0)  #: checkpoints only where the case asks for them
MAX_RESTARTS: Final = 40

#: Where an attempt dies or a call fails, for a disk or a database.
POINTS: Final = (
    "function",
    "slot write",
    "slot written",
    "slot read",
    "manifest write",
    "manifest: death before",
    "manifest: death after",
    "delete before",
    "delete between",
    "commit: death before",
    "commit: death after",
    "commit write",
    "record lost",
    "record: death after",
)
HANGS: Final = ("hang before record", "hang after record", "")  #: of a master that is taken over; "": it runs


class Faults(Shared):
    """The faults of a case. Each happens once, at the n-th time that its point is reached after it was armed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: dict[str, int] = {}
        self.happened: list[str] = []

    def arm(self, point: str, times: int) -> None:
        with self._lock:
            self._armed[point] = times

    def disarm(self) -> None:
        with self._lock:
            self._armed.clear()

    def is_due(self, point: str, where: str = "") -> bool:
        with self._lock:
            if point not in self._armed:
                return False
            self._armed[point] -= 1
            if self._armed[point] > 0:
                return False
            del self._armed[point]
            self.happened.append(f"{point} {where}".strip())
            return True

    def fail_at(self, point: str, where: str = "") -> None:
        """A fault of the environment, which some calls repeat."""
        if self.is_due(point, where):
            raise EnvironmentFailure(f"the environment fails at {point}")

    def die_at(self, point: str, where: str = "") -> None:
        """Ends the attempt, as in `mortal`."""
        if self.is_due(point, where):
            raise WeirError(f"the process ends at {point}")

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.is_due("function"):
            raise RuntimeError("the function fails")
        return batch


class SlotDisk(FileStore):
    """The storage as a slot sees it."""

    def __init__(self, root: str, faults: Faults) -> None:
        super().__init__(root)
        self._faults = faults

    def put(self, path: str, data: Iterable[bytes]) -> None:
        self._faults.fail_at("slot write", path)
        super().put(path, data)
        self._faults.fail_at("slot written", path)

    def get(self, path: str) -> bytes:
        self._faults.fail_at("slot read", path)
        return super().get(path)

    def get_range(self, path: str, offset: int, nbytes: int) -> bytes:
        self._faults.fail_at("slot read", path)
        return super().get_range(path, offset, nbytes)


class MasterDisk(FileStore):
    """The storage as the job master sees it."""

    def __init__(self, root: str, faults: Faults) -> None:
        super().__init__(root)
        self._faults = faults

    def put(self, path: str, data: Iterable[bytes]) -> None:
        is_new_manifest = path.endswith(MANIFEST_FILE) and not self._locate(path).exists()
        if path.endswith(MANIFEST_FILE):
            self._faults.fail_at("manifest write", path)
        if is_new_manifest:  # others are written outside of attempts too
            self._faults.die_at("manifest: death before", path)
        super().put(path, data)
        if is_new_manifest:
            self._faults.die_at("manifest: death after", path)

    def delete(self, paths: Iterable[str]) -> None:
        for number, path in enumerate(paths):
            self._faults.fail_at("delete between" if number else "delete before", path)
            super().delete([path])


class Committer(FileCommitter):
    def __init__(self, folder: Path, faults: Faults) -> None:
        super().__init__(folder)
        self._faults = faults

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        place = f"{self._folder.name} {permit.checkpoint}"
        self._faults.die_at("commit: death before", place)
        self._faults.fail_at("commit write", place)
        count = super().commit(permit, committables)
        self._faults.die_at("commit: death after", place)
        return count


@dataclass(frozen=True)
class Parquet(ParquetSink):
    faults: Faults | None = None

    def committer(self) -> FileCommitter:
        assert self.faults is not None
        return Committer(Path(self.path), self.faults)


@dataclass(frozen=True)
class JsonLines(JsonLinesSink):
    faults: Faults | None = None

    def committer(self) -> FileCommitter:
        assert self.faults is not None
        return Committer(Path(self.path), self.faults)


@dataclass
class Records(MemoryRunStore):
    """Records whose master may hang at a record, and may be displaced by a successor."""

    faults: Faults = None  # type: ignore[assignment]  # dataclasses put defaults first

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._resumed = threading.Event()

    def record_checkpoint(self, completed: CompletedCheckpoint) -> bool:
        number = str(completed.manifest.checkpoint)
        if self.faults.is_due("hang before record", number):
            self._resumed.wait(PATIENCE_S)
        with self._lock:
            is_recorded = super().record_checkpoint(completed)
        if is_recorded:
            self.faults.fail_at("record lost", number)
            self.faults.die_at("record: death after", number)
        if self.faults.is_due("hang after record", number):
            self._resumed.wait(PATIENCE_S)
        return is_recorded

    def next_attempt(self, reason: str, detail: Any) -> Token | None:
        with self._lock:
            return super().next_attempt(reason, detail)

    def displace(self) -> None:
        """From now on its master changes nothing."""
        with self._lock:
            self.superseded = True

    def successor(self, tokens: int) -> "Records":
        """The records of the same run, under a token that is higher by `tokens`."""
        self.displace()
        return replace(self, token=Token(self.token + tokens), superseded=False)

    def resume(self) -> None:
        """A master that hangs goes on, as one that was cut off."""
        self._resumed.set()


class Case:
    """A random job and its life."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._rng = Random(f"job {seed}")
        self._faults = Faults()
        self._story: list[str] = []
        self._operations = 0
        self._runs: list[Run] = []
        self.checkpoints = 0
        self.restores = 0

    @property
    def faults(self) -> int:
        return len(self._faults.happened)

    def check(self, folder: Path) -> str:
        """Runs the case below `folder`. Returns the difference of its output from the expected one; "" if none."""
        self._folder, self._storage = folder, folder / "state"
        self._graph = Graph(self._rng, self._faults, self._sink)
        try:
            with _disks(self._faults), ExitStack() as attempts:
                read = self._live(attempts)
            problems = [
                problem
                for output in self._graph.outputs
                for problem in (output.check(folder, read), self._log_problem(output.uid))
                if problem
            ]
        except (AssertionError, WeirError) as error:
            problems = [f"{type(error).__name__}: {error}"]
        return "\n".join([*problems, *self._happened()]) if problems else ""

    def _happened(self) -> Iterator[str]:
        yield f"graph: {self._graph}"
        yield f"life: {'; '.join(self._story)}"
        yield f"faults: {'; '.join(self._faults.happened)}"

    def _sink(self, uid: str) -> Sink:
        path, rng = str(self._folder / uid), self._rng
        kind = rng.choice(["plain", "plain", "small", "compacted", "lines", "rolled lines"])
        match kind:
            case "lines":
                return JsonLines(path, faults=self._faults)
            case "rolled lines":
                return JsonLines(path, max_bytes=300, faults=self._faults)
            case "compacted":
                return Parquet(path, compact_checkpoints=rng.randint(2, 4), faults=self._faults)
            case "small":
                return Parquet(path, max_bytes=1_000, faults=self._faults)
        return Parquet(path, faults=self._faults)

    # ------------------------------------------------------------ the life of the job

    def _live(self, attempts: ExitStack) -> Read:
        rng = self._rng
        ways = [rng.choice(["stop", "savepoint", "takeover", "takeover"]) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
        records: Records | None = Records(faults=self._faults)
        for way in [*ways, "end"]:
            assert records is not None
            parallelism, settings = rng.choice([1, 2, 2, 3, 4]), ASKED if way == "savepoint" else PERIODIC
            self._story.append(f"token {records.token}, parallelism {parallelism}")
            run = attempts.enter_context(
                running(
                    self._graph.flow.compile(parallelism),
                    self._storage,
                    records,
                    settings=settings,
                    restart=FixedDelay(attempts=MAX_RESTARTS, delay_ms=rng.choice([0, 5])),
                    retained=rng.choice([1, 2, 3]),
                    store=MasterDisk(str(self._storage), self._faults),
                    outage_backoff=ExponentialDelay(initial_ms=5, max_ms=20),
                    wait_step_s=0.02,
                )
            )
            attempts.callback(self._records_of(run).resume)  # before the block of the run ends
            self._runs.append(run)
            records = self._phase(run, way)
            self.checkpoints += len(run.manifests)
            assert run.records.failure is None, run.records.failure
            if records is None:
                assert run.exit == [MasterExitCode.DONE], f"the master ended without a result: {run.exit}"
                break
            self.restores += 1
        return self._read(run)

    def _phase(self, run: Run, way: str) -> Records | None:
        """Returns the records of the next phase; None: the job has ended."""
        rng = self._rng
        for _ in range(rng.randint(1, 3)):
            self._offer_rows()
            if rng.random() < 0.6:
                for point in rng.sample(POINTS, rng.choice([1, 1, 2])):
                    self._faults.arm(point, rng.randint(1, 4))
            if rng.random() < 0.3:
                self._resume_masters()
            if not self._await_checkpoint(run, is_asked=way == "savepoint"):
                return None
        self._offer_rows()
        match way:
            case "stop":
                return self._stop(run)
            case "savepoint":
                return self._leave_at_savepoint(run)
            case "takeover":
                return self._take_over(run)
        if rng.random() < 0.7:
            for feed in self._graph.feeds:
                feed.offer_all()
        if all(feed.is_offered and feed.bounded for feed in self._graph.feeds) and rng.random() < 0.7:
            self._story.append("all input ends")
            self._await(run, lambda: False)
        else:
            self._end(run, "drain")
        return None

    def _offer_rows(self) -> None:
        for feed in self._graph.feeds:
            feed.offer([self._rng.choice([0, 1, 4, 10, 25]) for _ in range(SPLITS)])

    def _stop(self, run: Run) -> Records | None:
        self._end(run, "stop")
        final = [each for each in run.records.completed if each.manifest.kind is CheckpointKind.STOP]
        return self._restored(run, final[-1]) if final else None

    def _leave_at_savepoint(self, run: Run) -> Records | None:
        """The savepoint is restored while the attempt that took it goes on."""
        savepoint = None
        while savepoint is None:
            number = self._operation(run, "savepoint")
            if not self._await(run, partial(run.records.settled.__contains__, number)):
                return None
            result, error = run.records.settled[number]
            self._story.append(f"savepoint {result or error}")
            savepoint = result and result["checkpoint"]
        records = self._records_of(run)
        records.displace()
        if self._rng.random() < 0.5:
            self._offer_rows()
        if records.completed[-1].manifest.checkpoint != savepoint:  # a final one, with visible output
            self._story.append("the savepoint is not the newest checkpoint")
            return records.successor(self._rng.randint(1, 4))
        return self._restored(run, records.completed[-1])

    def _restored(self, run: Run, savepoint: CompletedCheckpoint) -> Records:
        """The records of a new run from a savepoint."""
        records = Records(faults=self._faults, restore_from=savepoint.folder)
        newest = max(completed.manifest.checkpoint for completed in run.records.completed)
        records.reserve_ids_above(newest, run.records.token + self._rng.randrange(4))
        return records

    def _take_over(self, run: Run) -> Records | None:
        """Another master goes on from the newest checkpoint, while this one hangs or goes on, and so do its slots."""
        hang, before = self._rng.choice(HANGS), len(self._faults.happened)
        if hang:
            self._faults.arm(hang, self._rng.randint(1, 2))
            if not self._await(run, lambda: any(each.startswith(hang) for each in self._faults.happened[before:])):
                return None
        records = self._records_of(run).successor(self._rng.randint(1, 4))
        self._story.append(f"taken over{hang and ': '}{hang}")
        self._offer_rows()
        return records

    def _end(self, run: Run, kind: str) -> None:
        """Asks until the master has ended: an operation ends with an error if its checkpoint fails."""
        while run.thread.is_alive():
            number = self._operation(run, kind)
            self._await(run, partial(self._has_failed, run, number))
            self._story.append(f"{kind} {run.records.settled.get(number)}")

    def _resume_masters(self) -> None:
        for run in self._runs[:-1]:
            self._records_of(run).resume()
            run.master.poke()

    # ------------------------------------------------------------ waiting

    @staticmethod
    def _records_of(run: Run) -> Records:
        assert isinstance(run.records, Records)
        return run.records

    @staticmethod
    def _has_failed(run: Run, operation: str) -> bool:
        return run.records.settled.get(operation, (None, None))[1] is not None

    def _operation(self, run: Run, kind: str) -> str:
        self._operations += 1
        number = f"{kind} {self._operations}"
        run.records.operations.append(OperationRequest(number, kind))
        return number

    def _await_checkpoint(self, run: Run, *, is_asked: bool) -> bool:
        """Waits for a checkpoint that begins from now on. Returns whether the master is still there."""
        if is_asked:
            number = self._operation(run, "checkpoint")
            return self._await(run, lambda: number in run.records.settled)
        newest = max((report.checkpoint for report in run.records.reports), default=0)
        return self._await(run, lambda: any(m.checkpoint > newest for m in run.manifests))

    @staticmethod
    def _await(run: Run, what: Callable[[], bool]) -> bool:
        """Waits until `what` is true or the master has ended. Returns whether `what` is true."""

        def is_over() -> bool:
            run.master.poke()
            return what() or not run.thread.is_alive()

        until(is_over, PATIENCE_S, or_else=lambda: f"but {run.records.state}, {run.records.attempts[-3:]}")
        return what()

    # ------------------------------------------------------------ the output

    def _read(self, run: Run) -> Read:
        """What the sources have read at the end of the job."""
        drains = [each.manifest for each in run.records.completed if each.manifest.kind is CheckpointKind.DRAIN]
        return Read(
            {feed.uid: feed.rows_read(drains[-1].token) if drains else feed.totals for feed in self._graph.feeds}
        )

    def _log_problem(self, uid: str) -> str:
        """The difference of the commit log of a sink from the visible files of its folder."""
        folder = self._folder / uid
        log = CommitLog(folder)
        logged = Counter(file.name for sink in log.sinks() for epoch in log.epochs(*sink) for file in epoch.files)
        visible = Counter(path.name for path in folder.glob("part-*"))
        different = (logged - visible) + (visible - logged)
        return f"{uid}: the commit log differs from the files: {sorted(different)[:4]}" if different else ""


@contextmanager
def _disks(faults: Faults) -> Iterator[None]:
    """Slots keep small states, on a disk that fails."""
    with (
        patch(DEPLOYMENT_OF_SLOTS, small_deployment),
        patch("runtime.launch.local.open_store", lambda root: SlotDisk(root, faults)),
    ):
        yield


def run_case(seed: int) -> tuple[Case, str]:
    """A case in a folder of its own, and its difference."""
    case = Case(seed)
    with tempfile.TemporaryDirectory(prefix="weir-fuzzing-") as folder:
        return case, case.check(Path(folder))


def replay_command(seed: int) -> str:
    return f"python -m tests.jobs.fuzzing --replay {seed}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.jobs.fuzzing", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=200, help="number of cases")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--replay", type=int, metavar="SEED", help="one case, as printed")
    parser.add_argument("--until-found", action="store_true", help="end at the first case that differs")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    seeds = range(options.first, options.first + options.cases) if options.replay is None else [options.replay]
    cases = differences = checkpoints = restores = faults = 0
    started, computed = time.monotonic(), time.process_time()
    with patch("os.fsync", os.fstat):  # no case ends the machine
        for seed in seeds:
            case, difference = run_case(seed)
            cases, checkpoints, restores = cases + 1, checkpoints + case.checkpoints, restores + case.restores
            faults += case.faults
            if difference:
                differences += 1
                sys.stdout.write(f"case {seed}: {difference}\n  repeat: {replay_command(seed)}\n")
                sys.stdout.flush()
                if options.until_found:
                    break
    took, processor = time.monotonic() - started, time.process_time() - computed
    sys.stdout.write(
        f"{cases} cases, {checkpoints} checkpoints, {restores} restores by hand, {faults} faults, "
        f"{differences} differences, {took:.0f} s, {processor:.0f} s of processor time\n"
    )
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
