"""The invariants of every simulated world. A failed check raises a `Violation` that names the invariant."""

from collections import Counter
from collections.abc import Iterable, Set
from typing import Final, NamedTuple

from runtime.core.checkpoint.retention_plan import files_of
from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import ChannelId, CheckpointId, SubtaskId, Token
from runtime.core.job.messages import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    Barrier,
    CheckpointKind,
    EndOfData,
    EndOfPartition,
    Idle,
    Message,
    Records,
    Watermark,
)
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.manifest import FinishedState, Manifest, parse_folder
from runtime.core.subtask.credits import FlowControl
from runtime.core.subtask.spec import may_overtake
from runtime.core.subtask.subtask import Subtask

STATE_IN_FILES: Final = "files-hold-the-state-of-the-operator"  #: an invariant: no file of state differs from its proof


class Violation(Exception):
    """An invariant does not hold: a bug of the core or of the simulator."""

    def __init__(self, law: str, detail: str) -> None:
        super().__init__(f"{law}: {detail}")
        self.invariant, self.detail = law, detail


def require(holds: bool, law: str, detail: object) -> None:
    if not holds:
        raise Violation(law, str(detail))


class _Sent(NamedTuple):
    """The detail of a violation: a message, without the values of its records."""

    message: Message
    channel: ChannelId

    def __str__(self) -> str:
        message = self.message
        return f"{f'{message.rows} rows' if isinstance(message, Records) else message} on {self.channel}"


class ChannelChecker:
    """Checks the order of messages on a channel: data, end of data, the barrier of a stop, end of partition."""

    def __init__(self, channel: ChannelId, window_bytes: int | None = FlowControl().max_bytes) -> None:
        self.channel = channel
        self.window_bytes = window_bytes  #: None: a feedback channel, which costs no credit
        self.last_barrier = 0
        self.drained = self.sealed = self.ended = False
        self.idle: Idle | None = None  #: the last message, if the channel is idle
        self._bytes_before_step: int | None = 0  #: None: the sender has no credit
        self._is_flushed = False  #: whether rows were sent without credit, and no barrier after them

    def begin_step(self, queued_bytes: int | None) -> None:
        """A step of the sender begins. `queued_bytes`: on the channel; None: the sender has no credit."""
        self._bytes_before_step = queued_bytes

    def end_step(self) -> None:
        """Without credit, only the rows are sent that must precede a barrier, which waits for no credit."""
        require(not self._is_flushed, "rows-without-credit-precede-a-barrier", self.channel)

    def check_message(self, message: Message) -> None:
        """Checks a message that is sent in the present step."""
        detail = _Sent(message, self.channel)
        require(not self.ended, "end-of-partition-is-last", detail)
        match message:
            case Records():
                require(not self.sealed, "no-records-behind-the-last-barrier", detail)
                require(self.idle is None, "no-records-while-idle", detail)
                require(not self.drained, "no-records-after-end-of-data", detail)
                if self.window_bytes is None:
                    return
                if (queued := self._bytes_before_step) is None:
                    self._is_flushed = True
                else:
                    within = queued < self.window_bytes
                    require(within, "bounded-queues", f"{queued} bytes before the step on {self.channel}")
            case Watermark():
                require(not self.sealed, "no-watermark-behind-the-last-barrier", detail)
                self.idle = None
            case Idle(time):
                rises = self.idle is None or time > self.idle.time
                require(rises, "an-idle-channel-repeats-no-watermark", detail)
                self.idle = message
            case Barrier(checkpoint, kind):
                require(checkpoint > self.last_barrier, "barrier-ids-increase", detail)
                self.last_barrier, self._is_flushed = checkpoint, False
                self.sealed = self.sealed or kind.ends_job
            case EndOfData(drain):
                self.drained = self.drained or drain
            case EndOfPartition():
                self.ended = True
            case _:
                pass


def check_subtask(machine: Subtask) -> None:
    waiting = machine.aligning_checkpoint is not None
    require(waiting or not machine.blocked_channels, "no-blocked-channel-without-a-pending-barrier", machine.spec.id)
    if machine.is_idle:
        times: dict[int, int] = {}  #: the smallest watermark of each edge
        for channel in machine.spec.regular_channels:
            time = machine.watermarks.watermark_of(channel)
            times[channel.edge] = min(time, times.get(channel.edge, MAX_WATERMARK))
        largest = max((time for time in times.values() if time < MAX_WATERMARK), default=MIN_WATERMARK)
        detail = f"{machine.spec.id} is idle at {machine.watermark}, an edge at {largest}"
        require(largest <= machine.watermark, "an-idle-subtask-holds-back-no-watermark", detail)


class Ledger:
    """The checkpoints triggered and recorded, and the operations settled, during the whole life of a job."""

    def __init__(self) -> None:
        self.triggered: dict[CheckpointId, tuple[Token, CheckpointKind]] = {}
        self.recorded: dict[CheckpointId, Manifest] = {}
        self.resolved_operations: set[str] = set()
        self.completed_by_attempt: Counter[Token] = Counter()

    def on_trigger(self, checkpoint: CheckpointId, token: Token, kind: CheckpointKind) -> None:
        newest = max((c for c, (t, _) in self.triggered.items() if t == token), default=0)
        require(checkpoint not in self.triggered, "an-id-is-used-once", checkpoint)
        require(checkpoint > newest, "ids-increase", f"{checkpoint} after {newest}")
        self.triggered[checkpoint] = (token, kind)

    def on_record(self, manifest: Manifest, graph: JobGraph, current: Token) -> None:
        """Checks and adds a manifest when its checkpoint is recorded."""
        checkpoint = CheckpointId(manifest.checkpoint)
        require(manifest.token == current, "one-owner", f"{checkpoint} recorded by {manifest.token}, owner {current}")
        require(checkpoint not in self.recorded, "recorded-once", checkpoint)
        begun = self.triggered.get(checkpoint)
        require(begun == (manifest.token, manifest.kind), "recorded-as-triggered", f"{checkpoint}: {begun}")
        check_manifest(manifest, graph)
        self.recorded[checkpoint] = manifest
        self.completed_by_attempt[Token(manifest.token)] += 1

    def check_commit(self, permit: CommitPermit, names: Iterable[str], restoring: bool) -> None:
        manifest = self.recorded.get(permit.checkpoint)
        require(manifest is not None, "commit-only-what-is-recorded", permit)
        assert manifest is not None
        own = permit.token == manifest.token or restoring
        require(own, "commit-with-the-right-token", f"{permit}, manifest of {manifest.token}")
        plain = manifest.kind is CheckpointKind.SAVEPOINT and not restoring
        require(not plain, "a-savepoint-notifies-nobody", permit)
        held = committables(manifest)
        for name in names:
            require(name in held, "commit-only-what-the-manifest-holds", f"{name} by {permit}")

    def on_operation_result(self, operation: str) -> None:
        require(operation not in self.resolved_operations, "an-operation-is-settled-once", operation)
        self.resolved_operations.add(operation)


def committables(manifest: Manifest) -> set[str]:
    return {name for o in manifest.operators.values() for t in o.subtasks.values() for name in t.committables}


def check_manifest(manifest: Manifest, graph: JobGraph) -> None:
    """Checks that a manifest is complete and that its finished operators are closed under predecessors (FLIP-147)."""
    finished = set(manifest.finished_operators())
    heads = {edge.target for edge in graph.edges if edge.feedback}
    for operator in graph.operators:
        entry = manifest.operators[operator.uid]
        whole = sorted(entry.subtasks) == list(range(operator.parallelism))
        require(whole, "every-subtask-in-the-manifest", f"{manifest.checkpoint}: {operator.uid}")
        if operator.uid in finished:
            before = set(graph.predecessors(operator.uid)) - finished
            require(not before, "finished-set-closed-under-predecessors", f"{operator.uid} finished, not {before}")
        logged = any(snapshot.feedback for snapshot in entry.subtasks.values())
        require(not logged or operator.uid in heads, "only-back-edges-are-logged", operator.uid)
        drained = manifest.kind is CheckpointKind.DRAIN
        require(not (logged and drained), "a-drain-leaves-no-feedback-log", operator.uid)
        in_flight = any(snapshot.in_flight for snapshot in entry.subtasks.values())
        aligns = manifest.kind.ends_job or not may_overtake(graph, operator.uid)
        require(not (in_flight and aligns), "only-rows-with-a-key-group-are-overtaken", operator.uid)
        done = sum(snapshot.finished for snapshot in entry.subtasks.values())
        flagged = entry.finished is FinishedState.FINISHED
        require(flagged == (done == operator.parallelism), "finished-means-all-subtasks", operator.uid)
        partly_union = 0 < done < operator.parallelism and any(s.unions for s in entry.subtasks.values())
        require(not partly_union, "a-union-list-is-whole", f"{manifest.checkpoint}: {operator.uid} is partly finished")


def check_files(there: Set[str], retained: Iterable[Manifest]) -> None:
    """Checks after every deletion that the files of retained checkpoints exist. `there`: the paths of all files."""
    for manifest in retained:
        missing = files_of(manifest) - there
        require(not missing, "a-retained-checkpoint-keeps-its-files", f"{manifest.checkpoint} lacks {sorted(missing)}")


def check_deletion(there: Set[str], discarded: Iterable[Manifest], retained: Iterable[Manifest], limit: int) -> None:
    """Checks after a successful deletion that no file of a discarded checkpoint is left.

    Files of checkpoints up to `limit` are exempt: an unreadable checkpoint may need them.
    """
    needed = {path for manifest in retained for path in files_of(manifest)}
    for manifest in discarded:
        own = [path for path in files_of(manifest) - needed if _checkpoint_of(path) > limit]
        left = there & set(own)
        require(not left, "deletion-goes-on", f"{sorted(left)} of {manifest.checkpoint}, unreadable up to {limit}")


def _checkpoint_of(path: str) -> int:
    numbers = parse_folder(path.split("/", 1)[0])
    assert numbers is not None, path
    return numbers[0]


def check_pending_committables(there: Set[str], retained: Iterable[Manifest]) -> None:
    """Checks after every output clean-up that all committables of retained manifests are prepared or committed."""
    for manifest in retained:
        missing = committables(manifest) - there
        require(not missing, "a-retained-checkpoint-keeps-its-output", f"{manifest.checkpoint} lacks {sorted(missing)}")


def check_output(committed: Counter[tuple[str, str, int]], expected: Counter[tuple[str, str, int]]) -> None:
    missing, surplus = expected - committed, committed - expected
    require(not surplus, "nothing-committed-twice", _sample(surplus))
    require(not missing, "nothing-lost", _sample(missing))


def check_notification_targets(graph: JobGraph, told: Set[SubtaskId]) -> None:
    require(told <= set(graph.subtasks), "only-known-subtasks-are-notified", told)


def _sample(rows: Counter[tuple[str, str, int]]) -> str:
    return f"{sum(rows.values())} rows, such as {sorted(rows)[:5]}"
