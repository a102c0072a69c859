"""Preview of retention: the checkpoints of a job that a policy would discard, with the bytes that this would free.

The decisions are those of the job master: both call `runtime.core.checkpoint.retention_plan`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from console import formats
from console.accounts.refusals import Refused
from console.checkpoints import storage
from console.checkpoints.models import Checkpoint, Kind, ReviewState
from console.checkpoints.selectors import restorable
from console.checkpoints.timed_reads import read_in_time
from console.jobs.models import Job, Run
from console.runs.selectors import latest_run
from runtime.core.checkpoint.retention_plan import (
    KeepReason,
    RetainedCheckpoint,
    RetentionPlan,
    deletable_files,
    files_of,
    folder_of_file,
    plan_retention,
)
from runtime.core.job.settings import JobSettings, RetentionPolicy
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE

MAX_KEEP: Final = 1000  #: as in the setting `retained_checkpoints`
MAX_HOURS: Final = 8760  #: as in the setting `retained_hours`
MAX_MANIFESTS: Final = 200  #: with more manifests to read, the freed bytes are not computed


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLine:
    """A checkpoint in the preview.

    Args:
        reasons: why it stays; empty if it is discarded.
        freed_bytes: size of the files that are deleted with it. A file of several discarded checkpoints counts for the
            oldest. None: not known.
        shared_bytes: size of its files that stay, because `needed_by` names them.
        needed_by: number of the newest kept checkpoint that names one of its files.
    """

    checkpoint: Checkpoint
    reasons: tuple[str, ...] = ()
    freed_bytes: int | None = None
    shared_bytes: int = 0
    needed_by: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPreview:
    """`policy`, and `present`, that of the job. Lines are newest first.

    `unknown`: why the freed bytes are not known, as a sentence; "" if they are known.
    """

    policy: RetentionPolicy
    present: RetentionPolicy
    discarded: tuple[RetentionLine, ...]
    kept: tuple[RetentionLine, ...]
    unknown: str

    @property
    def kept_checkpoints(self) -> tuple[RetentionLine, ...]:
        return tuple(line for line in self.kept if line.checkpoint.kind == Kind.CHECKPOINT)

    @property
    def savepoints(self) -> tuple[RetentionLine, ...]:
        return tuple(line for line in self.kept if line.checkpoint.kind != Kind.CHECKPOINT)

    @property
    def freed_bytes(self) -> int | None:
        sizes = [line.freed_bytes for line in self.discarded]
        return None if self.unknown or None in sizes else sum(size or 0 for size in sizes)

    @property
    def sentence(self) -> str:
        count, periodic = len(self.discarded), len(self.discarded) + len(self.kept_checkpoints)
        newest = describe_policy(self.policy)
        savepoints = _number(len(self.savepoints), "savepoint")
        if not count:
            return f"Keeping {newest} would delete nothing: {_number(periodic, 'checkpoint')} and {savepoints} stay."
        freed = "" if self.freed_bytes is None else f" and free {formats.size(self.freed_bytes)}"
        return (
            f"Keeping {newest} would delete {count} of {_number(periodic, 'checkpoint')}{freed}. "
            f"{_number(len(self.kept_checkpoints), 'checkpoint').capitalize()} and {savepoints} would stay."
        )


def describe_policy(policy: RetentionPolicy) -> str:
    newest = "the newest checkpoint" if policy.keep == 1 else f"the {policy.keep} newest checkpoints"
    return newest if policy.hours is None else f"{newest} and those of the last {_number(policy.hours, 'hour')}"


def preview_retention(job: Job, policy: RetentionPolicy | None = None) -> RetentionPreview:
    """The preview for a policy; None stands for the policy of the job's latest run. Three queries.

    `keep` must be from 1 to `MAX_KEEP`, and `hours` from 1 to `MAX_HOURS`.
    """
    run = latest_run(job)
    present = _present_policy(job, run)
    preview_policy = policy or present
    rows = list(restorable(job).select_related("pinned_by"))
    plan = plan_retention(
        (_candidate(row) for row in rows), preview_policy, run=run.pk if run else 0, restored=_restored(run, rows)
    )
    doomed = [row for row in rows if row.number not in plan.kept]
    survivors = [row for row in rows if row.number in plan.kept]
    files = _files(doomed, survivors)
    return RetentionPreview(
        policy=preview_policy,
        present=present,
        discarded=files.lines(doomed),
        kept=tuple(
            RetentionLine(checkpoint=row, reasons=_reasons(row, plan, preview_policy, run)) for row in survivors
        ),
        unknown=files.unknown,
    )


def _present_policy(job: Job, run: Run | None) -> RetentionPolicy:
    version = run.version if run else job.versions.order_by("-number").first()
    settings = version.settings if version else {}
    default = JobSettings()
    return RetentionPolicy(
        int(settings.get("retained_checkpoints", default.retained_checkpoints)),
        settings.get("retained_hours", default.retained_hours),
    )


def _candidate(row: Checkpoint) -> RetainedCheckpoint:
    return RetainedCheckpoint(
        number=row.number,
        run=row.run_id,
        triggered_ms=round(row.triggered_at.timestamp() * 1000),
        is_savepoint=row.kind != Kind.CHECKPOINT,
        is_pinned=row.is_pinned,
        is_in_review=row.review_state == ReviewState.IN_REVIEW,
        is_held=row.held_by is not None,
    )


def _restored(run: Run | None, rows: Iterable[Checkpoint]) -> int | None:
    """The number of the checkpoint that the latest run was restored from, if its files still exist."""
    return next((row.number for row in rows if run and row.pk == run.restore_checkpoint_id), None)


def _reasons(row: Checkpoint, plan: RetentionPlan, policy: RetentionPolicy, run: Run | None) -> tuple[str, ...]:
    by = f" by {row.pinned_by}" if row.pinned_by else ""
    sentences: Mapping[KeepReason, str] = {
        KeepReason.NEWEST: "It is the newest checkpoint."
        if policy.keep == 1
        else f"It is among the {policy.keep} newest checkpoints.",
        KeepReason.YOUNG: f"It is of the last {_number(policy.hours or 0, 'hour')} before the newest.",
        KeepReason.SAVEPOINT: "Only a user discards a savepoint.",
        KeepReason.PINNED: f"It is pinned{by}.",
        KeepReason.IN_REVIEW: "It is in review.",
        KeepReason.HELD: "A rollback or drill that is under way restores it.",
        KeepReason.RESTORED: f"Run {run.pk if run else 0} was restored from it and has no checkpoint of its own yet.",
    }
    return tuple(sentences[reason] for reason in plan.kept[row.number])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """The files of the checkpoints to discard, compared with the manifests of the kept checkpoints.

    `doomed` and `survivors`: files by number of the checkpoint. `unknown`: as in `RetentionPreview`.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    doomed: Mapping[int, set[str]] = field(default_factory=dict)
    survivors: Mapping[int, set[str]] = field(default_factory=dict)
    deletable: set[str] = field(default_factory=set)
    unknown: str = ""

    def lines(self, rows: Sequence[Checkpoint]) -> tuple[RetentionLine, ...]:
        """The lines of the checkpoints to discard, newest first."""
        counted, lines = set[str](), []
        for row in sorted(rows, key=lambda row: row.number):
            lines.append(self._line(row, counted))
            counted |= self.doomed.get(row.number, set())
        return tuple(lines[::-1])

    def _line(self, row: Checkpoint, counted: set[str]) -> RetentionLine:
        """`counted`: the files of older checkpoints."""
        files = self.doomed.get(row.number)
        if files is None:
            return RetentionLine(checkpoint=row)
        shared = files - self.deletable
        return RetentionLine(
            checkpoint=row,
            freed_bytes=sum(self.sizes.get(path, 0) for path in (files & self.deletable) - counted),
            shared_bytes=sum(self.sizes[path] for path in shared),
            needed_by=max((number for number, paths in self.survivors.items() if paths & shared), default=None),
        )


def _files(doomed: Sequence[Checkpoint], survivors: Sequence[Checkpoint]) -> _Files:
    periodic = [row for row in survivors if row.kind == Kind.CHECKPOINT]
    if len(doomed) + len(periodic) > MAX_MANIFESTS:
        return _Files(unknown=f"The freed bytes are not computed for more than {MAX_MANIFESTS} checkpoints.")
    if not doomed:
        return _Files()
    key = ("retention", *(tuple(row.pk for row in rows) for rows in (doomed, survivors)))
    try:
        return read_in_time(key, partial(_read_files, doomed, periodic, survivors))
    except Refused as refused:
        return _Files(unknown=refused.detail)


def _read_files(
    doomed: Sequence[Checkpoint], periodic: Sequence[Checkpoint], survivors: Sequence[Checkpoint]
) -> _Files:
    sizes, doomed_files, kept_files = dict[str, int](), dict[int, set[str]](), dict[int, set[str]]()
    for row in doomed:
        if (manifest := storage.readable_manifest(row)) is not None:
            doomed_files[row.number] = files_of(manifest)
            sizes |= {segment.path: segment.nbytes for segment in manifest.files()}
            sizes[f"{row.path}/{MANIFEST_FILE}"] = storage.manifest_bytes(row)
    files = {path for paths in doomed_files.values() for path in paths}
    # A checkpoint may name files of the savepoint that its run was restored from. Other savepoints share no file.
    folders = {folder_of_file(path) for path in files}
    unreadable, manifests = [], []
    for row in (*periodic, *(row for row in survivors if row.kind != Kind.CHECKPOINT and row.path in folders)):
        if (manifest := storage.readable_manifest(row)) is None:
            unreadable.append(row.path)
        else:
            kept_files[row.number] = files_of(manifest)
            manifests.append(manifest)
    return _Files(
        sizes=sizes, doomed=doomed_files, survivors=kept_files, deletable=deletable_files(files, manifests, unreadable)
    )  # fmt: skip


def _number(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"
