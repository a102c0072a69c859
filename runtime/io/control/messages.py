"""Messages between the master and a slot on the control connection, after the `Hello` of `io.control`.

Facts that the machines of the core exchange are defined in `core.snapshot.control`.

Every message belongs to a single attempt, since the connection is fenced by the attempt's token.
"""

from enum import StrEnum

import msgspec

from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import CheckpointId, OperatorId, SubtaskId
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.control import (
    CheckpointAborted,
    ControlMessage,
    FollowWatermark,
    LiveOpened,
    ProbeSideOpened,
    SubtaskReport,
    TriggerSubtask,
)
from runtime.core.snapshot.row_numbers import ProcessedRows, RepeatedChannel


class Marker(msgspec.Struct, frozen=True):
    """Files that a host must see in `folder`: the master's marker, or existing files if it is not writable."""

    folder: str
    files: list[str]


# ---------------------------------------------------------------- master to slot


class Deploy(ControlMessage, frozen=True):
    """Open the subtasks in `restored` with their state; answer with `Deployed`, then wait for `Start`."""

    job: str
    storage: str
    peers: dict[int, str]
    restored: list[SubtaskRestore]
    mode: CheckpointMode = CheckpointMode.EXACTLY_ONCE
    markers: list[Marker] = []
    is_first_start: bool = False  #: first start of the run: a folder that is not shared rejects the job
    memory_bytes: int | None = None  #: bound on the resident memory of the slot's process
    inputs: dict[OperatorId, bytes] = {}  #: listings of `ports.ListsInput`, by source
    processed: list[RepeatedChannel] = []  #: of channels from this slot to surviving receivers
    alignment_timeout_ms: int = 0


class Start(ControlMessage, frozen=True):
    """Every slot is deployed: start."""


class Continue(ControlMessage, frozen=True):
    """To a kept slot: its subtasks belong to this attempt; answer with `Deployed`."""


class Retire(ControlMessage, frozen=True):
    """To a kept slot: close the subtasks of `operators`; answer with `Retired`, then wait for `Deploy`.

    The other subtasks keep their state. They drop messages in flight from the closed operators.
    """

    operators: list[OperatorId]


class ConfirmCheckpoint(ControlMessage, frozen=True):
    """The checkpoint is durable and recorded under the attempt's token."""

    checkpoint: CheckpointId


class SetSourcesPaused(ControlMessage, frozen=True):
    """Pause or resume the sources: too much of their output awaits delivery behind a sink."""

    paused: bool


class OperationTaken(ControlMessage, frozen=True):
    """The master begins an operation. `fields` are for the log of the slot, with the id of the HTTP request."""

    fields: dict[str, str]


class Detach(ControlMessage, frozen=True):
    """The attempt is over, and the subtasks of this slot run on. The next attempt sends `Continue`."""


class Shutdown(ControlMessage, frozen=True):
    """End now, in any state of the subtasks."""


ToSlot = (
    Deploy
    | Start
    | Continue
    | Retire
    | TriggerSubtask
    | ConfirmCheckpoint
    | CheckpointAborted
    | ProbeSideOpened
    | LiveOpened
    | FollowWatermark
    | SetSourcesPaused
    | OperationTaken
    | Detach
    | Shutdown
)

# ---------------------------------------------------------------- slot to master


class Deployed(ControlMessage, frozen=True):
    """Every subtask of this slot is open."""


class Retired(ControlMessage, frozen=True):
    """The subtasks that restart are closed.

    Args:
        address: of the slot's new exchange.
        processed: rows that the surviving subtasks have processed.
        ended: surviving subtasks whose restarted inputs have ended; "": none.
    """

    address: str
    processed: list[ProcessedRows] = []
    ended: str = ""


class ChannelBroken(ControlMessage, frozen=True):
    """A channel to or from slot `peer` broke. The slot waits for the end of the attempt."""

    peer: int
    detail: str


class Report(ControlMessage, frozen=True):
    """A report of a subtask."""

    subtask: SubtaskId
    report: SubtaskReport


class SubtaskStatus(StrEnum):
    """A subtask's state, as the console shows it. An operator shows the earliest of its subtasks."""

    DEPLOYING = "deploying"
    RUNNING = "running"
    WAITS_FOR_BUILD_SIDE = "waits for a build side"  #: it leads to the probe side of a join
    WAITS_FOR_STAGE = "waits for a sink's stage"
    FINISHED = "finished"  #: its logic has finished; it waits for its last checkpoint
    ENDED = "ended"


class SubtaskMetrics(msgspec.Struct, frozen=True):
    """Totals since the attempt began; `busy_ms` and `blocked_ms` too."""

    subtask: SubtaskId
    state: SubtaskStatus
    records_in: int
    records_out: int
    watermark: int
    busy_ms: float
    blocked_ms: float
    counters: dict[str, int]
    bytes_in: int = 0
    bytes_out: int = 0
    in_flight_bytes: int = 0  #: in the input queues now
    is_idle: bool = False  #: no receiver waits for the watermark
    open_results: dict[str, int] = {}  #: see `Operator.open_results`


class Heartbeat(ControlMessage, frozen=True):
    """The slot's process is alive; progress of its subtasks.

    `memory_bytes`: resident memory of the process; `memory_bound_bytes`: its bound, None without a bound.
    `cpu_ms`: processor time since the process began.
    """

    subtasks: list[SubtaskMetrics]
    memory_bytes: int = 0
    memory_bound_bytes: int | None = None
    cpu_ms: float = 0.0


class SlotFailed(ControlMessage, frozen=True):
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


ToMaster = Deployed | Retired | ChannelBroken | Report | Heartbeat | SlotFailed
