"""Parameters that several kinds of operations, or their plans, share."""

from typing import Annotated

import msgspec
from msgspec import Meta

from console.checkpoints.filters import MAX_BIGINT

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


class CheckpointParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of discard, pin, unpin and verify. `checkpoint` is the id of a row (not its number within the job)."""

    checkpoint: Id


class CloneParams(CheckpointParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot to restore beside the job, with its output discarded; also of a drill.

    `version` is the id of a version of the job (default: the newest that is ready). `name`: of the clone (default:
    derived from the name of the job). `allow_unmapped` drops the state of operators that the version lacks.
    """

    version: Id | None = None
    parallelism: Parallelism | None = None
    name: str = ""
    allow_unmapped: bool = False
