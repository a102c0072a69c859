"""Messages between the master and a slot on the control connection, after the `Hello` of `io.control`.

Every message belongs to a single attempt, since the connection is fenced by the attempt's token.
"""

from typing import Final

import msgspec

from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import OperatorId, SubtaskId
from runtime.core.job.messages import Barrier
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import SnapshotTimings, SubtaskSnapshot


class Marker(msgspec.Struct, frozen=True):
    """Files that a host must see in `folder`: the master's marker, or existing files if it is not writable."""

    folder: str
    files: list[str]


class _Message(msgspec.Struct, frozen=True, tag=True):
    """Tagged by its class name."""


# ---------------------------------------------------------------- master to slot


class Deploy(_Message, frozen=True):
    """Open these subtasks with this state; answer with `SlotDeployed`, then wait for `StartSubtasks`."""

    job: str
    storage: str
    peers: dict[int, str]
    restored: list[SubtaskRestore]
    mode: CheckpointMode = CheckpointMode.EXACTLY_ONCE
    markers: list[Marker] = []
    is_first_start: bool = False  #: first start of the run: a folder that is not shared rejects the job
    memory_bytes: int | None = None  #: bound on the resident memory of the slot's process


class StartSubtasks(_Message, frozen=True):
    """Every slot is deployed: start."""


class TriggerCheckpoint(_Message, frozen=True):
    subtask: SubtaskId
    barrier: Barrier


class ConfirmCheckpoint(_Message, frozen=True):
    """The checkpoint is durable and recorded under the attempt's token."""

    checkpoint: int


class AbortCheckpoint(_Message, frozen=True):
    checkpoint: int


class OpenProbeSide(_Message, frozen=True):
    """Every subtask of the join holds its whole build side: its probe side may start."""

    join: OperatorId


class PauseSources(_Message, frozen=True):
    """Pause or resume the sources: too much of their output awaits delivery behind a sink."""

    paused: bool


class Shutdown(_Message, frozen=True):
    """End now, in any state of the subtasks."""


ToSlot = (
    Deploy
    | StartSubtasks
    | TriggerCheckpoint
    | ConfirmCheckpoint
    | AbortCheckpoint
    | OpenProbeSide
    | PauseSources
    | Shutdown
)

# ---------------------------------------------------------------- slot to master


class SlotDeployed(_Message, frozen=True):
    """Every subtask of this slot is open."""


class AcknowledgeCheckpoint(_Message, frozen=True):
    subtask: SubtaskId
    checkpoint: int
    snapshot: SubtaskSnapshot
    timings: SnapshotTimings


class DeclineCheckpoint(_Message, frozen=True):
    subtask: SubtaskId
    checkpoint: int
    reason: FailureReason
    detail: str


class BuildSideRead(_Message, frozen=True):
    """The subtask of a join holds its whole build side."""

    subtask: SubtaskId


class SubtaskFinished(_Message, frozen=True):
    """The subtask's logic is done; it waits for its last checkpoint."""

    subtask: SubtaskId


class SubtaskClosed(_Message, frozen=True):
    subtask: SubtaskId


#: State of a subtask that leads to the probe side of a join, as the console shows it.
WAITS_FOR_BUILD_SIDE: Final = "waits for a build side"
WAITS_FOR_STAGE: Final = "waits for a sink's stage"


class SubtaskMetrics(msgspec.Struct, frozen=True):
    """Totals since the attempt began; `busy_ms` and `blocked_ms` too."""

    subtask: SubtaskId
    state: str
    records_in: int
    records_out: int
    watermark: int
    busy_ms: float
    blocked_ms: float
    counters: dict[str, int]


class Heartbeat(_Message, frozen=True):
    """The slot's process is alive; progress of its subtasks.

    `memory_bytes`: resident memory of the process; `memory_bound_bytes`: its bound, None without a bound.
    """

    subtasks: list[SubtaskMetrics]
    memory_bytes: int = 0
    memory_bound_bytes: int | None = None


class SlotFailed(_Message, frozen=True):
    """The slot cannot continue. `is_final`: a retry cannot help. `events`: the last events of the subtask.

    `fingerprint`: equal for two failures of the same code at the same record; empty unless it is a programming error.
    `damaged_file`: the state file that could not be restored, if any. `is_outage`: storage or a service that a source,
    a sink or the restore needs is unavailable. `code`: stable code of the cause; may be empty.
    """

    detail: str
    operator: str
    traceback: str
    is_final: bool
    events: list[str]
    damaged_file: str
    is_outage: bool = False
    fingerprint: str = ""
    code: str = ""


ToMaster = (
    SlotDeployed
    | AcknowledgeCheckpoint
    | DeclineCheckpoint
    | BuildSideRead
    | SubtaskFinished
    | SubtaskClosed
    | Heartbeat
    | SlotFailed
)
