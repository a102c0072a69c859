"""The values of a checkpoint: subtask snapshots, the manifest of a job, failure reasons and commit permits.

The console shows the values of `FailureReason` unchanged. Manifests name operators and subtasks, never chains or slots,
since the split into tasks may differ in the next run.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Self

import msgspec

from runtime.core.job.graph import InputEdge
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.proofs import GroupProof

FORMAT_VERSION: Final = 1
#: List state of a step that sets rows aside: the times of the last minute. It is a limit; no row is lost without it.
SET_ASIDE_TIMES: Final = "_set_aside_times"


def folder_of(kind: CheckpointKind, checkpoint: int, token: int, variant: str = "") -> str:
    """The folder of a checkpoint's files below the job's storage root; unique to the attempt that writes it.

    `variant` distinguishes savepoints of equal id and token that were written outside of any attempt.
    """
    folder = f"{'savepoint' if kind.is_savepoint else 'chk'}-{checkpoint}-{token}"
    return f"{folder}-{variant}" if variant else folder


@lru_cache(maxsize=1024)  # each capture asks for the folder of every segment that it names
def parse_folder(folder: str) -> tuple[int, int] | None:
    """Checkpoint id and token of a folder that `folder_of` named; None for any other name."""
    kind, *parts = folder.split("-")
    numbers, variant = parts[:2], parts[2:]
    if kind not in ("chk", "savepoint") or len(numbers) != 2 or not all(n.isascii() and n.isdigit() for n in numbers):
        return None
    if variant and (kind != "savepoint" or len(variant) > 1 or not is_variant(variant[0])):
        return None
    return int(numbers[0]), int(numbers[1])


def is_variant(text: str) -> bool:
    """Whether `text` is a valid variant: ASCII letters and digits only, since it becomes part of a folder name."""
    return text.isascii() and text.isalnum()


def streams_folder(job: int, lineage: int) -> str:
    """The folder, below WEIR_INPUTS, that standing PySpark stages share with the runs of `lineage`.

    `lineage` is the id of the first run in a sequence of runs that continue each other's checkpoints. A run without a
    checkpoint reads its streams from the beginning.
    """
    return f"{job}/streams/{lineage}"


def columns_folder(job: int, version: int) -> str:
    """The folder, below WEIR_INPUTS, that caches the columns of a version's DataFrames as Spark reported them."""
    return f"{job}/columns/{version}"


class FinishedState(StrEnum):
    """How many of an operator's subtasks had finished at the snapshot: none, some or all (FLIP-147)."""

    RUNNING = "running"
    PARTLY = "partly"
    FINISHED = "finished"


class SegmentBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a state file that can be read alone: whole, consecutive key groups."""

    offset: int
    nbytes: int
    rows: int
    checksum: str  #: as `Segment.checksum`, over the bytes before the first block followed by the block
    first_group: int
    last_group: int


class Segment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A state file. `path` is relative to the checkpoint storage root of the job.

    A small segment is *inline*: `content` holds its bytes, and no file exists. `path` then only names the segment.
    Segments of savepoints are never inline.
    """

    path: str
    rows: int
    nbytes: int
    checksum: str  #: "crc32c:<hex>" or "blake2b:<hex>", over the file's bytes
    first_group: int  #: range of key groups in the file, both ends included
    last_group: int
    blocks: tuple[SegmentBlock, ...] = ()  #: in order of key groups; empty: the file is small, or not in that order
    content: bytes = b""  #: the bytes of an inline segment; empty: they are in the file

    @property
    def is_inline(self) -> bool:
        return bool(self.content)


class TableColumns(msgspec.Struct, frozen=True):
    """The columns of a keyed state with their Arrow types; "null" while the type is unknown for lack of rows."""

    keys: dict[str, str]
    values: dict[str, str]


class RowsInFlight(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that a barrier overtook on an edge, before they reached the operator. A restore replays them first."""

    source: str  #: the operator that sent them
    output: str  #: the side output of `source`; "": the main output
    input: int  #: the input of the operator that receives them
    keys: tuple[str, ...]  #: the key columns of the edge
    is_aggregated: bool  #: before a window, per key and pane
    used: tuple[str, ...] | None  #: the columns that later steps used, of which the rows have those sent; None: all
    batches: int  #: in which the rows were sent
    segments: tuple[Segment, ...]  #: the rows of a key are in their order
    proof: dict[int, GroupProof]  #: by key group

    @property
    def name(self) -> str:
        """The name of the rows among the states of the operator, for people."""
        output = f", output {self.output}" if self.output else ""
        return f"rows in flight from {self.source}{output}, input {self.input}"

    def is_from(self, edge: InputEdge) -> bool:
        """Whether the rows were sent on `edge`, or on that of another version with the same ends and keys."""
        return (self.source, self.output, self.input, self.keys) == (edge.source, edge.output, edge.input, edge.keys)


class SubtaskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a subtask at a barrier, as handles.

    `keyed` and `broadcast` map a state's name to its segments: base first, then deltas in order.
    `lists` maps a name to JSON values that a rescale redistributes. `unions` maps a name to JSON values that every
    subtask receives in full; it includes every declared union list, even if empty.
    `committables` are JSON values that the sink has prepared and not yet seen committed, oldest first.
    `feedback` holds the in-flight records of a loop, at its head.
    `in_flight` holds the rows that the barrier overtook before the subtask.
    """

    finished: bool = False
    watermark: int | None = None
    keyed: dict[str, tuple[Segment, ...]] = {}
    broadcast: dict[str, tuple[Segment, ...]] = {}
    lists: dict[str, tuple[Any, ...]] = {}
    unions: dict[str, tuple[Any, ...]] = {}
    committables: tuple[Any, ...] = ()
    feedback: tuple[Segment, ...] = ()
    key_types: dict[str, str] = {}  #: Arrow types of the operator's key columns
    value_types: dict[str, str] = {}  #: Arrow types by `state.column` of keyed tables
    empty_tables: dict[str, TableColumns] = {}  #: keyed states without rows
    proofs: dict[str, dict[int, GroupProof]] = {}  #: of keyed and broadcast states, by name and key group
    in_flight: tuple[RowsInFlight, ...] = ()

    def segments(self) -> tuple[Segment, ...]:
        state_maps = (*self.keyed.values(), *self.broadcast.values())
        state = (segment for segments in state_maps for segment in segments)
        return (*state, *self.feedback, *(segment for rows in self.in_flight for segment in rows.segments))

    def with_segments(self, change: Callable[[Segment], Segment]) -> Self:
        """A copy in which `change` has replaced each segment."""
        return msgspec.structs.replace(
            self,
            keyed={name: tuple(map(change, segments)) for name, segments in self.keyed.items()},
            broadcast={name: tuple(map(change, segments)) for name, segments in self.broadcast.items()},
            feedback=tuple(map(change, self.feedback)),
            in_flight=tuple(
                msgspec.structs.replace(rows, segments=tuple(map(change, rows.segments))) for rows in self.in_flight
            ),
        )


class SnapshotTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of the phases of a subtask's snapshot, and the bytes written to storage.

    The phases follow each other: the start delay begins with the trigger and ends when the first barrier arrives, then
    come alignment, the work before the barrier, the copy of the state (sync) and its storage (async).
    """

    start_delay_ms: float = 0.0
    alignment_ms: float = 0.0
    pre_barrier_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    written_bytes: int = 0


class OperatorSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """An operator in a manifest. `subtasks`: snapshots of the subtasks that contributed state, by index."""

    parallelism: int
    finished: FinishedState
    subtasks: dict[int, SubtaskSnapshot] = {}
    origin: str = ""  #: origin of state that no running job wrote, such as a savepoint writer; shown to people
    durations: dict[str, int] = {}  #: as in `OperatorSpec`
    #: By partitioned input, the names of the key columns. `SubtaskSnapshot.key_types` has the types. None: unknown.
    keys: tuple[tuple[str, ...], ...] | None = None
    aggregates: tuple[tuple[str, str], ...] | None = None  #: as in `OperatorSpec`; None: unknown
    times: tuple[str, ...] | None = None  #: as in `OperatorSpec`; None: unknown


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a completed checkpoint. `token`: the attempt that took it; 0: written outside of a job."""

    format: int = FORMAT_VERSION
    job: str
    checkpoint: int
    kind: CheckpointKind
    token: int
    triggered_at: int
    max_parallelism: int
    operators: dict[str, OperatorSnapshot]
    variant: str = ""  #: only for savepoints with token 0; see `folder_of`

    def segments(self) -> tuple[Segment, ...]:
        return tuple(s for o in self.operators.values() for t in o.subtasks.values() for s in t.segments())

    def files(self) -> tuple[Segment, ...]:
        """The segments that are files."""
        return tuple(segment for segment in self.segments() if not segment.is_inline)

    def with_segments(self, change: Callable[[Segment], Segment]) -> Self:
        """A copy in which `change` has replaced each segment."""

        def change_operator(operator: OperatorSnapshot) -> OperatorSnapshot:
            subtasks = {index: snapshot.with_segments(change) for index, snapshot in operator.subtasks.items()}
            return msgspec.structs.replace(operator, subtasks=subtasks)

        operators = {uid: change_operator(operator) for uid, operator in self.operators.items()}
        return msgspec.structs.replace(self, operators=operators)

    def finished_operators(self) -> tuple[str, ...]:
        return tuple(uid for uid, o in self.operators.items() if o.finished is FinishedState.FINISHED)
