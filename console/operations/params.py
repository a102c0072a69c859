"""Parameters of each kind of operation."""

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from console.accounts.refusals import Refused
from console.checkpoints.filters import MAX_BIGINT
from console.checkpoints.models import ReviewState
from console.jobs.inputs import convert_input
from console.operations.blackouts import MAX_WINDOWS, PATTERN
from console.operations.models import RECORDED_KINDS, OperationKind, ScheduledOperation

Id = Annotated[int, Meta(ge=1, le=MAX_BIGINT)]
Parallelism = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class RunParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of cancel. `run`: the request is refused if another run is the latest of the job by then."""

    run: Id | None = None


class SavepointParams(RunParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Name, note and pin of the savepoint that a savepoint, stop or drain takes, and the folder to copy it to.

    A trigger of Postgres writes them to the savepoint when the operation succeeds (`operations/migrations`).
    """

    name: str = ""
    note: str = ""
    pin: bool = False
    target: str | None = None


class NewRunParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`version` is the id of a version of the job (default: the newest that is ready)."""

    version: Id | None = None
    parallelism: Parallelism | None = None
    accept_repeated_output: bool = False


class StartParams(NewRunParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`when_ready`: the start waits for the compilation of `version` (default then: the newest version)."""

    when_ready: bool = False


class RestoreParams(NewRunParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either `checkpoint`, the id of a row (not its number within the job), or `path`, the folder of a savepoint.

    `allow_unmapped` drops the state of operators that the version lacks. `plan_hash`: the restore is refused if its
    effects are no longer those of the report with this hash.
    """

    checkpoint: Id | None = None
    path: str | None = None
    allow_unmapped: bool = False
    plan_hash: str | None = None

    def __post_init__(self) -> None:
        if self.checkpoint is None and self.path is None:
            raise ValueError("`checkpoint` must be given, or else a path")
        if self.checkpoint is not None and self.path is not None:
            raise ValueError("`path` must not be given beside a checkpoint")


class RescaleParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`version`: id of the version that goes on (default: the run's). `parallelism`: default: that of the version.

    `allow_unmapped` drops the state of operators that the version lacks. `plan_hash`: the rescale is refused if the run
    that would stop is not that of the plan with this hash.
    """

    version: Id | None = None
    parallelism: Parallelism | None = None
    allow_unmapped: bool = False
    plan_hash: str | None = None

    def __post_init__(self) -> None:
        if self.version is None and self.parallelism is None:
            raise ValueError("`parallelism` must be given, or else a version")


class EndRun(StrEnum):
    """The operation by which a rollback ends the run. A stop takes a savepoint, so no progress is lost."""

    STOP = OperationKind.STOP.value
    CANCEL = OperationKind.CANCEL.value


class RollbackParams(RestoreParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run ends by `end_run`, then `checkpoint` is restored. The parameters are those of a restore without `path`.

    The run may commit output until it ends, so `accept_repeated_output` is required. Without `plan_hash`, the rollback
    is bound to the effects at the time of the request.
    """

    end_run: EndRun = EndRun.STOP

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.checkpoint is None:
            raise ValueError("`checkpoint` must be given: only a recorded snapshot is held until the run has ended")


class CheckpointParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of discard, pin, unpin and verify. `checkpoint` is the id of a row (not its number within the job)."""

    checkpoint: Id


class CopyParams(CheckpointParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The savepoint to copy, and the folder below `WEIR_SAVEPOINT_ROOTS` that gets a folder with the copy."""

    target: str


class LabelParams(CheckpointParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new name or note of a checkpoint or savepoint; None keeps the present text."""

    name: str | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if self.name is None and self.note is None:
            raise ValueError("`name` must be given, or else a note")


class ScheduleParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Savepoints or drills every `every_hours` hours, or each day at `daily_at` ("HH:MM", UTC).

    `name`: the savepoints have this name and the time. `keep`: number of them that are kept, besides pinned ones.
    `blackouts`: windows such as "sat,sun 00:00-24:00" or "09:00-17:00" (UTC), in which nothing is requested.
    """

    operation: ScheduledOperation = ScheduledOperation.SAVEPOINT
    every_hours: Annotated[int, Meta(ge=1, le=168)] | None = None
    daily_at: Annotated[str, Meta(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")] | None = None
    keep: Annotated[int, Meta(ge=1, le=1000)] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=80)] | None = None
    blackouts: Annotated[tuple[Annotated[str, Meta(pattern=PATTERN)], ...], Meta(max_length=MAX_WINDOWS)] = ()

    def __post_init__(self) -> None:
        if (self.every_hours is None) == (self.daily_at is None):
            raise ValueError("either `every_hours` or `daily_at` must be given")
        if self.operation is ScheduledOperation.DRILL and (self.keep is not None or self.name is not None):
            raise ValueError("`keep` and `name` are of savepoints, not of drills")


class UnscheduleParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The schedule to remove."""

    operation: ScheduledOperation = ScheduledOperation.SAVEPOINT


class CloneParams(CheckpointParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot to restore beside the job, with its output discarded; also of a drill.

    `version` is the id of a version of the job (default: the newest that is ready). `name`: of the clone (default:
    derived from the name of the job). `allow_unmapped` drops the state of operators that the version lacks.
    """

    version: Id | None = None
    parallelism: Parallelism | None = None
    name: str = ""
    allow_unmapped: bool = False


class AssignParams(CheckpointParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The user who reviews a checkpoint, by user name; "" removes the assignment."""

    user: str


class CommentParams(CheckpointParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A comment on a checkpoint. Comments are never changed or deleted."""

    text: Annotated[str, Meta(min_length=1, max_length=4000)]


class ReviewParams(CheckpointParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The review of a checkpoint. `note` None keeps the present note."""

    state: ReviewState
    note: Annotated[str, Meta(max_length=4000)] | None = None


_PARAMS: dict[OperationKind, type[msgspec.Struct]] = {
    OperationKind.START: StartParams,
    OperationKind.RESTORE: RestoreParams,
    OperationKind.RESCALE: RescaleParams,
    OperationKind.ROLLBACK: RollbackParams,
    OperationKind.SAVEPOINT: SavepointParams,
    OperationKind.STOP: SavepointParams,
    OperationKind.DRAIN: SavepointParams,
    OperationKind.CANCEL: RunParams,
    OperationKind.DISCARD: CheckpointParams,
    OperationKind.PIN: CheckpointParams,
    OperationKind.UNPIN: CheckpointParams,
    OperationKind.LABEL: LabelParams,
    OperationKind.SCHEDULE: ScheduleParams,
    OperationKind.UNSCHEDULE: UnscheduleParams,
    OperationKind.CLONE: CloneParams,
    OperationKind.DRILL: CloneParams,
    OperationKind.VERIFY: CheckpointParams,
    OperationKind.COPY: CopyParams,
    OperationKind.ASSIGN: AssignParams,
    OperationKind.COMMENT: CommentParams,
    OperationKind.REVIEW: ReviewParams,
}


def params_schemas() -> dict[tuple[OperationKind, ...], dict[str, Any]]:
    """The JSON schema of the parameters, by the kinds of operations that have them."""
    kinds: dict[type[msgspec.Struct], tuple[OperationKind, ...]] = {}
    for kind, struct in _PARAMS.items():
        kinds[struct] = (*kinds.get(struct, ()), kind)
    return {own: msgspec.json.schema(struct) for struct, own in kinds.items()}


def parse_kind(given: object) -> OperationKind:
    """The kind of a request. Raises Refused for any other value."""
    known = [kind for kind in OperationKind if kind not in RECORDED_KINDS]
    if given in known:
        return OperationKind(str(given))
    raise Refused("unknown-kind", f"kind: must be one of {', '.join(known)}, not {given!r}.", field="kind")


def parse_params(kind: OperationKind, given: dict[str, Any]) -> Any:
    """The typed parameters of `kind`.

    Raises:
        Refused: names the parameter at fault.
    """
    return convert_input(given, _PARAMS[kind], "params")
