"""The world outside the core: clock, storage, checkpoint records, the target of the sinks, background work.

The stores have the guarantees of `runtime.ports`: ids are unique, a manifest is recorded only under the newest token,
commits are idempotent. Faults decide whether and when a store answers.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from runtime.core.checkpoint.retention_plan import RetainedCheckpoint, plan_retention
from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.settings import RetentionPolicy
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.manifest_codec import manifest_folder
from runtime.errors import EnvironmentFailure, TargetAway
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.ports import Clock
from runtime.simulation.faults import Faults
from runtime.simulation.invariants import Ledger, Violation
from runtime.simulation.model import Row
from runtime.state.files.compaction import DEFAULT_POLICY

JOURNAL_LENGTH: Final = 400
JOURNAL_WIDTH: Final = 200
JOB: Final = "job"
MAX_STALE_FILES: Final = 10  #: the newest files and deletions, which a stale listing does not know
_STORAGE_WORK: Final = ("slow_snapshot", "slow_manifest", "slow_compaction")


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A line of the journal."""

    step: int
    now: int
    origin: str
    content: object

    def __str__(self) -> str:
        what = str(self.content)
        shown = what if len(what) <= JOURNAL_WIDTH else f"{what[:JOURNAL_WIDTH]}…"
        return f"{self.step:6} {self.now:8} ms  {self.origin:24} {shown}"


class Background:
    """Asynchronous work such as writes and answers. Due work runs in random order."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def add(self, due: int, work: Callable[[], None]) -> None:
        self._waiting.append((due, work))

    def run_one(self, now: int) -> bool:
        due = [number for number, (at, _) in enumerate(self._waiting) if at <= now]
        if not due:
            return False
        self._waiting.pop(self._rng.choice(due))[1]()
        return True

    def next_due(self) -> int | None:
        return min((at for at, _ in self._waiting), default=None)


@dataclass(slots=True)
class CheckpointRecords:
    """The in-memory counterpart of the checkpoint store: linearizable, fenced by the attempt token."""

    ledger: Ledger
    token: Token = Token(0)
    last_id: int = 0
    run: int = 0
    runs: dict[int, int] = field(default_factory=dict)  #: checkpoint -> run
    discarded: set[int] = field(default_factory=set)
    damaged: set[int] = field(default_factory=set)  #: checkpoints with unreadable manifests

    def take_token(self) -> Token:
        self.token = Token(self.token + 1)
        return self.token

    def next_id(self, token: Token) -> CheckpointId | None:
        if token != self.token:
            return None
        self.last_id += 1
        return CheckpointId(self.last_id)

    def record(self, manifest: Manifest, graph: JobGraph) -> bool:
        if manifest.token != self.token:
            return False
        self.ledger.on_record(manifest, graph, self.token)
        self.runs[manifest.checkpoint] = self.run
        return True

    def run_manifests(self) -> list[Manifest]:
        """Retained checkpoints of the current run, oldest first."""
        return [manifest for manifest in self.retained_manifests() if self.runs[manifest.checkpoint] == self.run]

    def retained_manifests(self) -> list[Manifest]:
        """Checkpoints and savepoints that are not discarded, oldest first."""
        return [manifest for number, manifest in sorted(self.ledger.recorded.items()) if number not in self.discarded]

    def readable_manifests(self) -> list[Manifest]:
        """Retained checkpoints with a readable manifest, oldest first."""
        return [manifest for manifest in self.retained_manifests() if manifest.checkpoint not in self.damaged]

    def unreadable_folders(self) -> list[str]:
        """Folders of the retained checkpoints with a damaged manifest."""
        return [
            manifest_folder(manifest) for manifest in self.retained_manifests() if manifest.checkpoint in self.damaged
        ]

    def discard_beyond(self, token: Token, keep: int) -> list[str]:
        """Discards all but the newest `keep` checkpoints, never savepoints. Returns the discarded folders."""
        if token != self.token:
            return []
        manifests = {manifest.checkpoint: manifest for manifest in self.retained_manifests()}
        retained = [
            RetainedCheckpoint(number=number, run=self.runs[number], is_savepoint=manifest.kind.is_savepoint)
            for number, manifest in manifests.items()
        ]
        plan = plan_retention(retained, RetentionPolicy(keep), run=self.run, restored=None)
        self.discarded.update(plan.discarded)
        return [manifest_folder(manifests[number]) for number in plan.discarded]

    def newest(self) -> Manifest | None:
        return self.ledger.recorded[max(self.ledger.recorded)] if self.ledger.recorded else None

    def final_manifest(self) -> Manifest | None:
        """The completed stop or drain of this run, after which there is no restart; None if the run has neither."""
        return next((manifest for manifest in self.run_manifests() if manifest.kind.ends_job), None)

    def recovery_point(self) -> Manifest | None:
        """The newest checkpoint of this run; savepoints do not count."""
        usable = [manifest for manifest in self.run_manifests() if manifest.kind is CheckpointKind.CHECKPOINT]
        return usable[-1] if usable else None


class FaultyStorage(MemorySnapshotStore):
    """Checkpoint storage with faults. A failed write may nevertheless have stored the file, or a part of it."""

    def __init__(self, rng: Random, faults: Faults) -> None:
        super().__init__()
        self._rng, self._faults = rng, faults
        self.archive = MemorySnapshotStore()  #: all files ever written, for the oracle
        self.away = False  #: whether there is an outage; set by the simulation
        self._new: deque[str] = deque(maxlen=MAX_STALE_FILES)
        self._deleted: deque[str] = deque(maxlen=MAX_STALE_FILES)
        self._repeats: list[tuple[str, bytes]] = []  #: writes that arrive once more

    def damage(self, path: str) -> None:
        content = super().get(path)
        super().delete([path])
        super().put(path, [content[: len(content) // 2]])

    @property
    def paths(self) -> set[str]:
        """Of all files, whatever a listing says."""
        return set(super().sizes(""))

    def put(self, path: str, data: Iterable[bytes]) -> None:
        self._check(path)
        content, is_torn = b"".join(data), self._faults.occurs("torn_write")
        failed = self._faults.occurs("fail_snapshot" if path.endswith(".arrow") else "fail_manifest")
        if is_torn:
            super().put(path, [content[: len(content) // 2]])
        elif not failed or self._rng.random() < 0.3:
            super().put(path, [content])
            self.archive.put(path, [content])
        self._new.append(path)
        self._apply_repeats()
        if not is_torn and self._faults.occurs("repeat_write"):
            self._repeats.append((path, content))
        if is_torn or failed or self._faults.occurs("lose_store_reply"):
            raise EnvironmentFailure(f"{path}: storage failed")

    def get(self, path: str) -> bytes:
        self._check(path)
        if self._faults.occurs("fail_read"):
            raise EnvironmentFailure(f"{path}: storage failed")
        return super().get(path)

    def delete(self, paths: Iterable[str]) -> None:
        self._check("a deletion")
        paths = list(paths)
        failed = self._faults.occurs("fail_delete")
        super().delete(paths[: self._rng.randrange(len(paths) + 1)] if failed else paths)
        self._deleted.extend(paths)
        if failed or self._faults.occurs("lose_store_reply"):
            raise EnvironmentFailure("storage failed")

    def sizes(self, prefix: str) -> dict[str, int]:
        there = super().sizes(prefix)
        if not self._faults.occurs("stale_listing"):
            return there
        stale = {path: 0 for path in self._deleted if path.startswith(prefix)}
        return {path: size for path, size in (stale | there).items() if path not in self._new}

    def _apply_repeats(self) -> None:
        for path, content in self._repeats:
            super().put(path, [content])
        self._repeats.clear()

    def _check(self, what: str) -> None:
        if self.away:
            raise TargetAway(f"{what}: storage is unavailable")


@dataclass(slots=True)
class SimulatedTarget:
    """The target that all sinks share. Prepared output is invisible; a commit is idempotent and may fail half-way."""

    faults: Faults
    ledger: Ledger
    pending: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    committed: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)  #: names in `committed` that a consumer has moved away
    marks: dict[str, int] = field(default_factory=dict)  #: by writer: committed up to this checkpoint

    def prepare(self, name: str, rows: Sequence[Row]) -> None:
        if name in self.pending or name in self.committed:
            raise Violation("prepared-output-has-a-name-of-its-own", name)
        self.pending[name] = tuple(rows)

    def commit(self, permit: CommitPermit, names: Sequence[str], restoring: bool = False) -> None:
        self.ledger.check_commit(permit, names, restoring)
        for name in names:
            if self.faults.occurs("fail_commit"):
                raise EnvironmentFailure(f"commit of {name} failed")
            if name in self.pending:
                self._mark(name)
                if self.faults.occurs("fail_commit"):
                    raise EnvironmentFailure(f"commit of {name} failed behind its mark")
                self.committed[name] = self.pending.pop(name)
            elif not self.is_committed(name):
                raise Violation("prepared-output-stays-until-disowned", name)

    def is_committed(self, name: str) -> bool:
        """Whether a committer sees that `name` is committed: it is still visible, or a mark covers it."""
        writer, checkpoint = name.rsplit("-", 1)
        return (name in self.committed and name not in self.moved) or self.marks.get(writer, 0) >= int(checkpoint)

    def _mark(self, name: str) -> None:
        writer, checkpoint = name.rsplit("-", 1)
        self.marks[writer] = max(int(checkpoint), self.marks.get(writer, 0))

    def move_output(self) -> None:
        """Makes a consumer move all visible output away."""
        self.moved.update(self.committed)

    def clean(self, uid: str, token: Token, keep: Sequence[str]) -> None:
        """Removes output that older attempts prepared for the sink `uid`, except `keep`."""
        doomed = {name for name in self.pending if sink_in(name) == uid and token_in(name) < token} - set(keep)
        self.pending = {name: rows for name, rows in self.pending.items() if name not in doomed}

    @property
    def names(self) -> set[str]:
        """Names of all prepared or committed output."""
        return self.pending.keys() | self.committed.keys()

    def output(self) -> Counter[tuple[str, str, int]]:
        """Committed rows as (sink, key, value), including output that a consumer has taken."""
        return Counter((sink_in(name), key, value) for name, rows in self.committed.items() for key, value in rows)


def token_in(name: str) -> int:
    return int(name.split("-", maxsplit=1)[0])


def sink_in(name: str) -> str:
    return name.split("-")[1]


class World(Clock):
    """The state that all attempts of a job share, and their clock."""

    def __init__(self, rng: Random, faults: Faults) -> None:
        self.rng = rng
        self.faults = faults
        self.now = 1_000
        self.steps = 0
        self.pace_ms = 0  #: longest pause of a source between two batches
        self.journal_lines = 0  #: number of journal lines so far, including dropped lines
        self.journal: deque[JournalEntry] = deque(maxlen=JOURNAL_LENGTH)
        self.ledger = Ledger()
        self.records = CheckpointRecords(self.ledger)
        self.target = SimulatedTarget(faults, self.ledger)
        self.bases: dict[int, Manifest | None] = {}  #: by token, the manifest that the attempt restored
        self.storage = FaultyStorage(rng, faults)
        self.storage_is_slow_until = 0
        self.retained_checkpoints = 2
        self.kept_slots = 0  #: number of times that a slot continued in another attempt
        self.kept_subtasks = 0  #: number of times that a subtask kept its state while its inputs restarted
        self.repeated_rows = 0  #: rows that were not sent again to such subtasks
        self.compaction = DEFAULT_POLICY
        self.background = Background(rng)

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> float:
        return self.now

    def note(self, who: object, what: object) -> None:
        self.journal_lines += 1
        self.journal.append(JournalEntry(self.steps, self.now, str(who), what))

    def schedule(self, work: Callable[[], None], slow: str = "") -> None:
        """Schedules `work` in up to 6 ms, or in 50 to 400 ms if the fault `slow` strikes; later on slow storage."""
        delay = self.rng.randint(50, 400) if slow and self.faults.occurs(slow) else self.rng.randint(0, 6)
        if self.now < self.storage_is_slow_until and slow in _STORAGE_WORK:
            delay += self.rng.randint(500, 4_000)
        self.background.add(self.now + delay, work)

    def lines(self) -> Iterable[str]:
        """The last `JOURNAL_LENGTH` lines of the journal."""
        return map(str, self.journal)
