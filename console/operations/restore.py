"""What a restore, or a start from empty state, would mean: what maps to what, what is lost, what is repeated.

It looks at rows only (the checkpoint as recorded, the version's graph) and refuses what they show to be impossible, by
the rules of `runtime.core.recovery`. The job master reads the manifest itself and has the last word.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.db.models import Max, Min

from console.accounts.refusals import Conflict, Refused
from console.checkpoints.models import Checkpoint, Kind, Status
from console.jobs.models import Job, JobVersion


class Fate(StrEnum):
    """What happens to an operator in a restore."""

    RESTORED = "restored"
    SKIPPED = "skipped, it had finished"
    EMPTY = "new, starts empty"
    DROPPED = "dropped, not in this version"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorMapping:
    """One operator, by uid, on both sides."""

    uid: str
    fate: Fate
    state_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Committed checkpoints that a new run would not know of: their output would be produced again."""

    first: int
    last: int

    def __str__(self) -> str:
        if self.first == self.last:
            return f"Checkpoint {self.first} was committed"
        return f"Checkpoints {self.first} to {self.last} were committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """`refusal` stands in the way for good, `repeated` until it is accepted, `warnings` are for the reader."""

    refusal: Refused | None
    repeated: Repeated | None
    warnings: tuple[str, ...]
    mapping: tuple[OperatorMapping, ...]


def report(checkpoint: Checkpoint, version: JobVersion, parallelism: int) -> RestoreReport:
    """Compare a checkpoint with the version and parallelism that it is to be restored into."""
    mapping = _mapping(checkpoint, version)
    return RestoreReport(
        refusal=_refusal(checkpoint, version, parallelism) or _unfit(checkpoint, version),
        repeated=committed_of(checkpoint.job_id, checkpoint.number),
        warnings=_warnings(checkpoint),
        mapping=mapping,
    )


def must_be_restorable(checkpoint: Checkpoint, version: JobVersion, parallelism: int, *, accept_repeated: bool) -> None:
    """Raises the refusal of the report, or asks for acceptance of repeated output.

    Raises:
        Refused: the checkpoint cannot be restored like this.
        Conflict: newer output has been committed and `accept_repeated` was not given.
    """
    found = report(checkpoint, version, parallelism)
    if found.refusal is not None:
        raise found.refusal
    if found.repeated is not None and not accept_repeated:
        raise Conflict(
            "repeats-output",
            f"{found.repeated} after it: restoring {checkpoint.kind} {checkpoint.number} repeats their output. "
            "Accept repeated output to go on, or choose a newer one.",
            field="params.accept_repeated_output",
            first=found.repeated.first,
            last=found.repeated.last,
        )


def must_repeat_nothing(job: Job) -> None:
    """Asks for acceptance of the output that a start from empty state writes again.

    Raises:
        Conflict: output of the job has been committed.
    """
    if repeated := committed_of(job.pk):
        raise Conflict(
            "repeats-output",
            f"{repeated}: a start from empty state writes their output again. "
            "Accept repeated output to go on, or restore one of them.",
            field="params.accept_repeated_output",
            first=repeated.first,
            last=repeated.last,
        )


def committed_of(job_id: int, after: int = 0) -> Repeated | None:
    """What was committed after the checkpoint with this number.

    A plain savepoint notifies nobody, so it commits nothing; every other completed one does.
    """
    newer = Checkpoint.objects.filter(job_id=job_id, number__gt=after, status=Status.COMPLETED)
    ends = newer.exclude(kind=Kind.SAVEPOINT).aggregate(first=Min("number"), last=Max("number"))
    return None if ends["first"] is None else Repeated(first=ends["first"], last=ends["last"])


def _refusal(checkpoint: Checkpoint, version: JobVersion, parallelism: int) -> Refused | None:
    name = f"{checkpoint.kind.capitalize()} {checkpoint.number}"
    if checkpoint.status != Status.COMPLETED:
        status = checkpoint.status.replace("_", " ")
        return Conflict(
            "not-completed", f"{name} is {status}; only a completed one can be restored.", "params.checkpoint"
        )
    if checkpoint.discarded_at is not None:
        return Conflict("discarded", f"The files of {name} have been removed.", "params.checkpoint")
    if checkpoint.job_id != version.job_id:
        return Refused("other-job", f"{name} belongs to another job.", "params.checkpoint")
    if checkpoint.max_parallelism != version.max_parallelism:
        detail = (
            f"{name} has {checkpoint.max_parallelism} key groups and version {version.number} has "
            f"{version.max_parallelism}: max_parallelism is fixed at a job's first run."
        )
        return Refused("other-max-parallelism", detail, "params.version")
    if not 0 < parallelism <= version.max_parallelism:
        detail = f"parallelism: must lie between 1 and max_parallelism ({version.max_parallelism}), not {parallelism}."
        return Refused("invalid-field", detail, "params.parallelism")
    return None


def _unfit(checkpoint: Checkpoint, version: JobVersion) -> Refused | None:
    """Why the version's operators cannot take up the state of the checkpoint's."""
    name, into = f"{checkpoint.kind.capitalize()} {checkpoint.number}", f"version {version.number}"
    for uid in _homeless(checkpoint, version):
        detail = f"{name} holds state of the operator {uid!r}, which {into} lacks; its state would be lost."
        return Refused("unmapped-state", detail, "params.version", operator=uid)
    for before, uid in _unfinished_before_finished(checkpoint, version):
        detail = f"In {into} the operator {before!r} stands before {uid!r}, which {name.lower()} holds as finished."
        return Refused("operator-before-finished", detail, "params.version", operator=before)
    return None


def _homeless(checkpoint: Checkpoint, version: JobVersion) -> Iterator[str]:
    """Operators with state that the version does not have."""
    known = {operator["uid"] for operator in (version.graph or {}).get("operators", [])}
    return (held["uid"] for held in checkpoint.operators if held["uid"] not in known and _has_state(held))


def _unfinished_before_finished(checkpoint: Checkpoint, version: JobVersion) -> Iterator[tuple[str, str]]:
    """(operator, finished operator that it feeds): its records would be lost."""
    finished = {held["uid"] for held in checkpoint.operators if held.get("finished") == "finished"}
    for edge in (version.graph or {}).get("edges", []):
        if edge["target"] in finished and edge["source"] not in finished:
            yield edge["source"], edge["target"]


def _has_state(held: dict[str, Any]) -> bool:
    """What only the manifest holds (lists, pending commits) is told by `has_state`; older rows have sizes only."""
    return bool(held.get("has_state", held.get("state_bytes")))


def _mapping(checkpoint: Checkpoint, version: JobVersion) -> tuple[OperatorMapping, ...]:
    held = {operator["uid"]: operator for operator in checkpoint.operators}
    wanted = [operator["uid"] for operator in (version.graph or {}).get("operators", [])]
    kept = [_mapped(uid, held.get(uid)) for uid in wanted]
    dropped = [
        OperatorMapping(uid=uid, fate=Fate.DROPPED, state_bytes=operator.get("state_bytes") or 0)
        for uid, operator in held.items()
        if uid not in wanted
    ]
    return (*kept, *dropped)


def _mapped(uid: str, held: dict[str, Any] | None) -> OperatorMapping:
    if held is None:
        return OperatorMapping(uid=uid, fate=Fate.EMPTY, state_bytes=0)
    fate = Fate.SKIPPED if held.get("finished") == "finished" else Fate.RESTORED
    return OperatorMapping(uid=uid, fate=fate, state_bytes=int(str(held.get("state_bytes") or 0)))


def _warnings(checkpoint: Checkpoint) -> tuple[str, ...]:
    drained = (
        "This savepoint was taken by a drain: windows were closed early and everything was committed, so results "
        "may differ from those of a job that went on."
    )
    return (drained,) if checkpoint.kind == Kind.DRAIN else ()
