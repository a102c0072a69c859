"""The class of a kind of operation. `console.operations.kinds` has a module for each; `registry` finds them.

A class without state: its parameters, the right to request it, its texts, when it is legal, and what a request does.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
from django.db.models import Q
from django.db.models.functions import Now

from console.accounts.models import User
from console.accounts.refusals import Conflict, Refused
from console.accounts.rights import AnyUser, operate_refusal
from console.checkpoints.models import Checkpoint
from console.checkpoints.operation_codes import WITHDRAWN
from console.checkpoints.storage import CHECKPOINT_FIELD
from console.jobs.inputs import convert_input
from console.jobs.models import Job
from console.operations.job_state import JobState
from console.operations.models import Operation, OperationKind, OperationState
from runtime.core.job.lifecycle import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCommand:
    """A command of `weir` that does nothing but request an operation on a snapshot (`weir/control/operations.json`).

    The required parameters are arguments; `metavars` are their names in the usage, if they differ. `options` are the
    helps of other parameters. `question` is asked unless `--yes` is given, with the number and the job.
    """

    help: str
    metavars: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    needs_option: bool = False
    question: str = ""


class OperationType:
    """A kind of operation.

    Args:
        is_record: another request made the change, and the operation is its entry in the ledger.
        params: parameters of a request; a record has none.
        is_review: a token with the scope `review` may request it.
        blocked_by_maintenance: it starts or ends a run for good, or touches files of snapshots.
        begins_run: it creates a run, whose state decides its end.
        ends_run: the run's end is its end.
        takes_savepoint: its result names the savepoint.
        changes_run: it is an event on the time axis of the job.
        goal: state that the run is to reach, in words.
        states: states of the run that it brings about.
        reads_files: an active operation needs the files of its snapshot.
        message: sentence of a page after an accepted request.
        command: command of `weir`, if it is a plain one.
        similar: kinds whose earlier durations stand for the expected one, in order of preference.
        due: active operations that `advance` takes further; None: it has none.
        files_due: as `due`, of `advance_files`.
        withdrawable: queued operations that a withdrawal ends at once; None: it ends none so.
        files_at_once: operations that a pass of `advance_files` takes; None: all.
    """

    kind: ClassVar[OperationKind]
    is_record: ClassVar[bool] = False
    params: ClassVar[type[msgspec.Struct] | None] = None
    is_review: ClassVar[bool] = False
    blocked_by_maintenance: ClassVar[bool] = False
    begins_run: ClassVar[bool] = False
    ends_run: ClassVar[bool] = False
    takes_savepoint: ClassVar[bool] = False
    changes_run: ClassVar[bool] = False
    goal: ClassVar[str] = ""
    states: ClassVar[tuple[RunState, ...]] = ()
    reads_files: ClassVar[bool] = False
    message: ClassVar[str] = ""
    command: ClassVar[PlainCommand | None] = None
    similar: ClassVar[tuple[str, ...]] = ()
    due: ClassVar[Q | None] = None
    files_due: ClassVar[Q | None] = None
    files_at_once: ClassVar[int | None] = None
    withdrawable: ClassVar[Q | None] = None

    def right_refusal(self, user: AnyUser) -> str | None:
        """Why `user` may not request it; None when they may."""
        return operate_refusal(user, is_review=self.is_review)

    def parse(self, params: dict[str, Any]) -> Any:
        """The typed parameters. Raises Refused, which names the parameter at fault."""
        assert self.params is not None, "a record is not requested"
        return convert_input(params, self.params, "params")

    def prepare(self, row: Operation, params: Any) -> AbstractContextManager[Any]:
        """Work before the transaction of `accept`, so that no row is locked meanwhile. Yields its parameters.

        Raises:
            Refused: as `accept`.
        """
        return nullcontext(params)

    def accept(self, row: Operation, params: Any) -> Operation:
        """Writes `row`, and its effects if it takes effect at once. Call it inside a transaction.

        Raises:
            Refused: the parameters do not fit the job.
            Conflict: it is not possible in the present state of the job.
        """
        raise NotImplementedError

    def advance(self, row: Operation) -> None:
        """Takes an active operation as far as its rows allow. The row is locked; no file is read."""
        raise NotImplementedError

    def advance_files(self, row: Operation) -> None:
        """Work on files for an active operation, by a single worker of the console, outside any transaction."""
        raise NotImplementedError

    def withdrawal_refusal(self, row: Operation) -> str:
        """Why `row` cannot be withdrawn; "" if it can be, unless its master begins it meanwhile."""
        return f"A {row.kind} cannot be withdrawn."

    def withdrawal_effect(self, row: Operation) -> str:
        """The consequence of a withdrawal that is possible, in sentences."""
        return "It is possible until the job master begins it."

    def on_withdrawal(self, user: User, row: Operation) -> None:
        """Ends an operation as failed. The state is compared and set, as the job master does when it begins one.

        Raises:
            Conflict: the operation has begun or ended, or cannot be withdrawn.
        """
        error = {"code": WITHDRAWN, "message": f"{user} withdrew the request before a job master had begun it."}
        queued = Operation.objects.filter(pk=row.pk, state=OperationState.QUEUED)
        values = {"state": OperationState.FAILED, "phase": "", "ended_at": Now(), "error": error}
        if self.withdrawable is None or not queued.filter(self.withdrawable).update(**values):
            row.refresh_from_db()
            raise Conflict("cannot-withdraw", self.withdrawal_refusal(row))

    def part_of(self, parent: Operation, **params: Any) -> Operation:
        """An operation of this kind, not yet written, that belongs to `parent`."""
        return Operation(
            job=parent.job, kind=self.kind.value, params=params, part_of=parent, requested_by=parent.requested_by,
            reason=parent.reason, request_id=parent.request_id,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class JobButton:
    """The button of an operation on a job. `place`: in the order of a run's life; `key`: letter that reaches it.

    `page`: kind of the operation whose page it opens, if it has none of its own. `asks`: it needs a confirmation.
    """

    place: int
    label: str
    key: str
    page: OperationKind | None = None
    is_dangerous: bool = False
    asks: bool = True


class JobOperation(OperationType):
    """An operation on a job or its run."""

    changes_run = True
    button: ClassVar[JobButton]

    def conflict(self, state: JobState) -> Conflict | None:
        """Why it is not possible on the job now; None if it is possible."""
        raise NotImplementedError


class SnapshotOperation(OperationType):
    """An operation on a checkpoint or savepoint."""

    def conflict(self, checkpoint: Checkpoint) -> Conflict | None:
        """Why it is not possible on `checkpoint` now; None if it is possible.

        Raises:
            Refused: the storage cannot be read at the moment.
        """
        return None


def checkpoint_of(job: Job, checkpoint_id: int) -> Checkpoint:
    """The checkpoint with this id. Raises Refused if the job has none."""
    checkpoint = Checkpoint.objects.filter(pk=checkpoint_id, job=job).first()
    if checkpoint is None:
        detail = f"params.checkpoint: this job has no checkpoint with the id {checkpoint_id}."
        raise Refused("unknown-checkpoint", detail, field=CHECKPOINT_FIELD)
    return checkpoint


def save_queued(row: Operation, phase: str) -> Operation:
    """Writes an operation that a worker of the console will carry out."""
    row.phase = phase
    row.save(force_insert=True)
    row.refresh_from_db()  # reads the times that Postgres has set
    return row


def save_succeeded(row: Operation, result: dict[str, Any]) -> Operation:
    """Writes an operation that has already taken effect."""
    row.state, row.result = OperationState.SUCCEEDED.value, result
    row.started_at = row.ended_at = Now()
    row.save(force_insert=True)
    row.refresh_from_db()  # reads the times that Postgres has set
    return row
