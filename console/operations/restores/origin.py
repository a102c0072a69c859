"""The origin of a restore: a recorded checkpoint of the job, or the folder of a savepoint.

This module refuses checkpoints that no version can restore. `effects` decides whether it fits a version.
"""

from dataclasses import dataclass
from functools import partial
from typing import Self

from console.accounts.refusals import Conflict, Refused
from console.checkpoints import storage
from console.checkpoints.models import Checkpoint, Status, noun
from console.checkpoints.timed_reads import load_manifest_in_time, read_in_time
from console.jobs.models import Job
from console.operations.params import RestoreParams
from runtime.core.snapshot.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """`path` names the folder of a savepoint that was requested by folder; "" for a request by id of `checkpoint`."""

    manifest: Manifest
    checkpoint: Checkpoint | None = None
    path: str = ""

    @property
    def name(self) -> str:
        return f"{noun(self.manifest.kind).capitalize()} {self.manifest.checkpoint}"

    @property
    def field(self) -> str:
        """The parameter that named the origin."""
        return storage.PATH_FIELD if self.path else storage.CHECKPOINT_FIELD

    @classmethod
    def from_params(cls, job: Job, params: RestoreParams, manifest: Manifest | None = None) -> Self:
        """The origin that `params` name. `manifest`: that of the checkpoint, if the caller has read it.

        Raises:
            Refused: the checkpoint or savepoint does not exist, or is damaged.
        """
        if params.path is not None:
            return cls.from_folder(job, params.path)
        return cls.from_row(job, find_checkpoint(params.checkpoint or 0), manifest)

    @classmethod
    def from_row(cls, job: Job, checkpoint: Checkpoint, manifest: Manifest | None = None) -> Self:
        """The origin for a checkpoint row. `manifest`: as in `from_params`.

        Raises:
            Refused: the checkpoint belongs to another job, did not complete, is discarded, or its files are damaged,
                or the storage does not answer in time.
        """
        require_restorable_row(job, checkpoint)
        return cls(manifest=manifest or load_manifest_in_time(checkpoint), checkpoint=checkpoint)

    @classmethod
    def from_folder(cls, job: Job, path: str) -> Self:
        """The origin for a savepoint in a folder.

        Raises:
            Refused: the folder is not allowed, the savepoint is damaged, or it belongs to another job, or the storage
                does not answer in time.
        """
        origin_path, manifest = read_in_time(("savepoint", job.pk, path), partial(_load_savepoint, job.pk, path))
        checkpoint = Checkpoint.objects.filter(job=job, number=manifest.checkpoint, token=manifest.token).first()
        return cls(manifest=manifest, checkpoint=checkpoint, path=origin_path)


def _load_savepoint(job_id: int, path: str) -> tuple[str, Manifest]:
    """The `path` of the origin for a savepoint in a folder, and its manifest."""
    place, manifest = storage.load_savepoint(path)
    if manifest.job != str(job_id):
        detail = f"{place}: the savepoint belongs to another job, with the id {manifest.job}."
        raise Refused("other-job", detail, storage.PATH_FIELD)
    storage.require_no_clash(job_id, place, manifest)
    return storage.home_folder(job_id, place, manifest) or place, manifest


def find_checkpoint(checkpoint_id: int) -> Checkpoint:
    """The checkpoint with this id. Raises Refused if there is none."""
    checkpoint = Checkpoint.objects.filter(pk=checkpoint_id).select_related("job").first()
    if checkpoint is None:
        detail = f"params.checkpoint: there is no checkpoint with the id {checkpoint_id}."
        raise Refused("unknown-checkpoint", detail, field=storage.CHECKPOINT_FIELD)
    return checkpoint


def require_restorable_row(job: Job, checkpoint: Checkpoint) -> None:
    """Checks by its row that a checkpoint can be restored; its files are not looked at.

    Raises:
        Refused: the checkpoint belongs to another job, did not complete, or is discarded.
    """
    name = str(checkpoint).capitalize()
    if checkpoint.job_id != job.pk:
        raise Refused("other-job", f"{name} belongs to another job, {checkpoint.job.name}.", storage.CHECKPOINT_FIELD)
    if checkpoint.status != Status.COMPLETED:
        detail = f"{name} {checkpoint.outcome_words}; only a completed checkpoint can be restored."
        raise Conflict("not-completed", detail, storage.CHECKPOINT_FIELD)
    if checkpoint.discarded_at is not None:
        raise Conflict("discarded", f"The files of {name} have been removed.", storage.CHECKPOINT_FIELD)
