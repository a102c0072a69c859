"""The check of a checkpoint against its manifest: an operation, whose result is stored with its time.

A worker of the console reads every file for its checksum. Then a PySpark stage reads the rows of every state, and
compares them with the proof of the state. If a file is missing or damaged, or a state differs, the operation fails, and
a restore warns. A restore drill starts the operators, too.

Files are read outside any transaction, and a pass makes a single check. A long check gives other work on files its
turn: a pass ends after a minute, and the next one continues with the next file or state. If the worker dies, Postgres
releases its lock, and the next pass continues behind the last pass that ended.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.db.models import Q
from django.db.models.functions import Coalesce, Now
from django.utils import timezone

from console import formats
from console.accounts.refusals import Conflict
from console.checkpoints.models import Checkpoint
from console.checkpoints.storage import CHECKPOINT_FIELD, job_uri, pin
from console.jobs import stages
from console.jobs.services import lock_job
from console.operations.console_work import ConsoleWork, PhaseReport, WorkWithdrawn
from console.operations.models import ACTIVE_STATES, Operation, OperationKind, OperationState, Verification
from console.operations.operation_type import PlainCommand, SnapshotOperation, checkpoint_of, save_queued
from console.operations.params import CheckpointParams
from console.operations.restores.verification import StoredManifest, check_files, is_complete, read_manifest, summary
from runtime.core.snapshot.manifest import Manifest, Segment
from runtime.errors import EnvironmentFailure
from runtime.io.store import check_mounted

_PIN_RENEWAL_S: Final = 60.0
_MAX_PASS_S: Final = 60.0  #: a pass ends with the first file after it
_STAGE_TIMEOUT_S: Final = 3600.0  #: the stage ends a minute after its start, or with the state that it then reads


class Verify(ConsoleWork, SnapshotOperation):
    kind = OperationKind.VERIFY
    params = CheckpointParams
    blocked_by_maintenance = True
    reads_files = True
    message = "The check was requested."
    command = PlainCommand(
        help="Compares the files of snapshot NUMBER of JOB with its manifest; the console keeps the result."
    )
    noun = "check of files"
    effect_before = "Nothing is checked."
    effect_during = "The check stops without a result."
    files_due = Q()
    files_at_once = 1

    def conflict(self, checkpoint: Checkpoint) -> Conflict | None:
        if checkpoint.is_restorable:
            return None
        return Conflict("not-verifiable", f"{str(checkpoint).capitalize()} has no files.", CHECKPOINT_FIELD)

    def accept(self, row: Operation, params: CheckpointParams) -> Operation:
        """Queues the check for a worker of the console."""
        lock_job(row.job)  # the checkpoint must not be discarded meanwhile
        checkpoint = checkpoint_of(row.job, params.checkpoint)
        if not checkpoint.is_restorable:
            raise Conflict("not-verifiable", read_manifest(checkpoint).fault, CHECKPOINT_FIELD)
        if verification_under_way(checkpoint):
            raise Conflict("verify-active", f"A check of {checkpoint} has not ended.")
        return save_queued(row, "waiting for a worker")

    def advance_files(self, row: Operation) -> None:
        """Makes or continues the check."""
        checkpoint = Checkpoint.objects.get(pk=row.params["checkpoint"])
        active = Operation.objects.filter(pk=row.pk, state__in=ACTIVE_STATES)
        if not active.update(state=OperationState.RUNNING, started_at=Coalesce("started_at", Now())):
            return  # withdrawn meanwhile
        pin(checkpoint)
        try:
            if row.error is not None:
                raise WorkWithdrawn  # between two passes
            _check_and_end(row, checkpoint)
        except WorkWithdrawn:
            active.update(state=OperationState.FAILED, phase="", ended_at=Now(), result=None)


def verification_under_way(checkpoint: Checkpoint) -> Operation | None:
    active = Operation.objects.filter(job=checkpoint.job_id, kind=OperationKind.VERIFY, state__in=ACTIVE_STATES)
    return active.filter(params__checkpoint=checkpoint.pk).select_related("requested_by").first()


class _VerifyProgress:
    """Shows files, bytes and states that were read as the phase of the operation, and renews the pin."""

    def __init__(self, row: Operation, checkpoint: Checkpoint, segments: Sequence[Segment], skip: int) -> None:
        self._report, self._checkpoint, self._files = PhaseReport(row), checkpoint, len(segments)
        self._whole = formats.size(sum(segment.nbytes for segment in segments))
        self._read = sum(segment.nbytes for segment in segments[:skip])
        self._pin_due = time.monotonic() + _PIN_RENEWAL_S

    def on_file(self, number: int, nbytes: int) -> None:
        self._read += nbytes
        read = f"{formats.size(self._read)} of {self._whole}"
        self._show(f"checking files: {number} of {self._files}, {read}")

    def on_states(self, progress: Any) -> bool:
        """Takes a report of the stage: the number of the state that it reads, and of all; None before the first."""
        number, count = progress or (0, 0)
        self._show(f"checking states: {number} of {count}" if count else "checking states")
        return True

    def _show(self, phase: str) -> None:
        self._report.show(phase)
        if time.monotonic() >= self._pin_due:
            self._pin_due = time.monotonic() + _PIN_RENEWAL_S
            pin(self._checkpoint)


def _check_and_end(row: Operation, checkpoint: Checkpoint) -> None:
    stored = read_manifest(checkpoint)
    if stored.manifest is None:
        _end(row, {"code": "not-verified", "message": stored.fault})
        return
    try:
        check = _check_until_due(row, checkpoint, stored.manifest, _earlier(row, stored))
    except (EnvironmentFailure, stages.StageFailed) as error:
        what = "Checkpoint storage" if isinstance(error, EnvironmentFailure) else "The state"
        _end(row, {"code": "not-verified", "message": f"{what} cannot be read: {error}."})
        return
    if not check.is_whole:
        partial_result = {"checkpoint": checkpoint.number, "manifest_sha256": stored.sha256, **asdict(check)}
        Operation.objects.filter(pk=row.pk, state__in=ACTIVE_STATES).update(result=partial_result)
        return
    facts = {
        "operation": row, "manifest_sha256": stored.sha256, "is_damaged": check.is_damaged, "states": check.states,
        "files": [
            [segment.path, segment.nbytes, segment.checksum, result]
            for segment, result in zip(stored.manifest.segments(), check.files, strict=True)
        ],
    }  # fmt: skip
    Verification.objects.update_or_create(checkpoint=checkpoint, defaults=facts)
    result = {
        "checkpoint": checkpoint.number, "manifest_sha256": stored.sha256, "is_complete": not check.is_damaged,
        "sentence": check.sentence,
    }  # fmt: skip
    code = "damaged-files" if not is_complete(check.files) else "damaged-state"
    _end(row, {"code": code, "message": check.sentence} if check.is_damaged else None, result)


@dataclass(slots=True)
class _Check:
    """The results so far, of files and of states: operator, state, entries and result. Stored between two passes."""

    files: list[str] = field(default_factory=list)
    states: list[list[Any]] = field(default_factory=list)
    is_whole: bool = False

    @property
    def is_damaged(self) -> bool:
        return not is_complete([*self.files, *(result for *_, result in self.states)])

    @property
    def sentence(self) -> str:
        return summary(self.files, [result for *_, result in self.states])


def _earlier(row: Operation, stored: StoredManifest) -> _Check:
    """The results of earlier passes; none if the manifest has changed since."""
    earlier = row.result or {}
    return _Check(earlier["files"], earlier["states"]) if earlier.get("manifest_sha256") == stored.sha256 else _Check()


def _check_until_due(row: Operation, checkpoint: Checkpoint, manifest: Manifest, check: _Check) -> _Check:
    """Adds results to `check`, for about a minute.

    Raises:
        EnvironmentFailure: the storage cannot be read. If it is not mounted, no file counts as missing.
        StageFailed: the stage that reads the state has failed.
        WorkWithdrawn: the operation was withdrawn.
    """
    segments, due = manifest.segments(), time.monotonic() + _MAX_PASS_S
    progress = _VerifyProgress(row, checkpoint, segments, len(check.files))
    for result in check_files(checkpoint, manifest, progress.on_file, skip=len(check.files)):
        check.files.append(result)
        if time.monotonic() >= due:
            break
    if not is_complete(check.files):
        check_mounted(job_uri(checkpoint.job_id))
        check.is_whole = len(check.files) == len(segments)
    elif len(check.files) == len(segments) and time.monotonic() < due:
        with suppress(stages.StageInterrupted):  # the next pass repeats it
            answer = stages.run(_stage(row, checkpoint, len(check.states)), progress.on_states)
            check.states += answer["states"]
            check.is_whole = answer["is_whole"]
    return check


def _stage(row: Operation, checkpoint: Checkpoint, skip: int) -> stages.StageCommand:
    place = f"{job_uri(checkpoint.job_id)}/{checkpoint.path}"
    return stages.StageCommand(
        arguments=["verify", "--checkpoint", place, "--skip", str(skip)],
        log=Path(settings.WEIR_LOGS) / f"verify-{row.pk}.log",
        timeout_s=_STAGE_TIMEOUT_S,
    )


def _end(row: Operation, error: dict[str, str] | None, result: dict[str, Any] | None = None) -> None:
    row.state = (OperationState.FAILED if error else OperationState.SUCCEEDED).value
    row.error, row.result, row.phase, row.ended_at = error, result, "", timezone.now()
    row.save(update_fields=("state", "phase", "ended_at", "result", "error"))
