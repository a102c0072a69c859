"""What a restore begins from: a checkpoint that the job has on record, or the folder of a savepoint.

It refuses what cannot be restored into anything; whether it fits a version is decided by `console.operations.restore`.
"""

from dataclasses import dataclass
from typing import Self

from console.accounts.refusals import Conflict, Refused
from console.checkpoints import storage
from console.checkpoints.models import Checkpoint, Status, noun
from console.jobs.models import Job
from console.operations.params import RestoreParams
from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.manifest_codec import home_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """`path` says where the savepoint lies if that is not where `checkpoint` says, or if no row knows of it."""

    manifest: Manifest
    checkpoint: Checkpoint | None = None
    path: str = ""

    @property
    def name(self) -> str:
        return f"{noun(self.manifest.kind).capitalize()} {self.manifest.checkpoint}"

    @property
    def field(self) -> str:
        """Which parameter named it."""
        return storage.PATH if self.path else storage.ROW

    @classmethod
    def of(cls, job: Job, params: RestoreParams) -> Self:
        """What `params` name.

        Raises:
            Refused: there is no such thing, or it is not whole.
        """
        if params.path is not None:
            return cls.at(job, params.path)
        checkpoint = Checkpoint.objects.filter(pk=params.checkpoint or 0).select_related("job").first()
        if checkpoint is None:
            detail = f"params.checkpoint: there is no checkpoint with the id {params.checkpoint}."
            raise Refused("unknown-checkpoint", detail, field=storage.ROW)
        return cls.recorded(job, checkpoint)

    @classmethod
    def recorded(cls, job: Job, checkpoint: Checkpoint) -> Self:
        """A checkpoint on record.

        Raises:
            Refused: it is not the job's, did not complete, is gone, or its files are damaged.
        """
        name = str(checkpoint).capitalize()
        if checkpoint.job_id != job.pk:
            raise Refused("other-job", f"{name} belongs to another job, {checkpoint.job.name}.", storage.ROW)
        if checkpoint.status != Status.COMPLETED:
            status = checkpoint.status.replace("_", " ")
            detail = f"{name} is {status}; only a completed one can be restored."
            raise Conflict("not-completed", detail, storage.ROW)
        if checkpoint.discarded_at is not None:
            raise Conflict("discarded", f"The files of {name} have been removed.", storage.ROW)
        return cls(manifest=storage.recorded(checkpoint), checkpoint=checkpoint)

    @classmethod
    def at(cls, job: Job, path: str) -> Self:
        """A savepoint in a folder.

        Raises:
            Refused: the folder is out of bounds, what lies in it is damaged, or it belongs to another job.
        """
        folder, manifest = storage.elsewhere(path)
        if manifest.job != str(job.pk):
            detail = f"{folder}: the savepoint belongs to another job, the one with the id {manifest.job}."
            raise Refused("other-job", detail, storage.PATH)
        storage.must_not_clash(job.pk, folder, manifest)
        known = Checkpoint.objects.filter(job=job, number=manifest.checkpoint, token=manifest.token).first()
        home = storage.root_of(job.pk) / home_of(manifest)
        return cls(manifest=manifest, checkpoint=known, path=home.name if folder == home.resolve() else str(folder))
