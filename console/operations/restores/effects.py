"""The effects of a restore, or of a start from empty state: the operator mapping, dropped state, repeated output.

`runtime.core.restore.mapping` decides the mapping, for the job master too. This module turns it into a refusal that
names the parameter at fault, or into an effect that the user must accept.
"""

from dataclasses import dataclass
from hashlib import blake2s
from typing import Any, Final

import msgspec
from django.db.models import Max, QuerySet

from console.accounts.refusals import Conflict, Refused
from console.checkpoints.models import Checkpoint, Kind, ReviewState, Status, noun
from console.jobs.code import package_change
from console.jobs.models import Job, JobVersion, ReviewPolicy, Run
from console.operations.params import RestoreParams
from console.operations.restores.origin import Origin
from console.operations.restores.verification import found_damage
from runtime.core.job.graph import Role
from runtime.core.job.lifecycle import RunState
from runtime.core.job.messages import CheckpointKind
from runtime.core.restore import mapping
from runtime.core.restore.mapping import MappingReport, OperatorMatch, RestoreProblem, RestoreTarget

MAX_COUNTED: Final = 100  #: a long history has too many rows to count


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedCheckpoints:
    """Committed checkpoints unknown to a new run, which would produce their output again.

    `number` is below the length of the range if savepoints, failed checkpoints or a checkpoint in progress lie in it.
    `MAX_COUNTED` are counted exactly.
    """

    first: int
    last: int
    number: int

    def __str__(self) -> str:
        if self.number == 1:
            return f"Checkpoint {self.first} was committed"
        if self.number > MAX_COUNTED:
            return f"More than {MAX_COUNTED} checkpoints, from {self.first} to {self.last}, were committed"
        is_whole = self.number == self.last - self.first + 1
        which = "Checkpoints" if is_whole else f"{self.number} of the checkpoints"
        return f"{which} {self.first} to {self.last} were committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMapping:
    """The version's sources by uid: continued from their positions, read from the beginning, or finished."""

    continued: tuple[str, ...]
    new: tuple[str, ...]
    finished: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """`refusal` rules the restore out; `lost` (dropped state) and `repeated` (output) must be accepted by the user.

    `plan_hash` covers the origin, the target and all effects. The plan of a rollback covers the run that it ends,
    and leaves out the number of repeated checkpoints, which grows until then.
    """

    refusal: Refused | None
    lost: Refused | None
    repeated: RepeatedCheckpoints | None
    warnings: tuple[str, ...]
    sources: SourceMapping
    mapping: MappingReport
    plan_hash: str


def run_to_end(latest: Run | None) -> Run | None:
    """The run that a restore must end first: the latest run of the job, unless it has ended."""
    return None if latest is None or latest.is_terminal else latest


def report(
    job: Job,
    origin: Origin,
    version: JobVersion,
    parallelism: int,
    *,
    is_own_savepoint: bool = False,
    ends: Run | None = None,
) -> RestoreReport:
    """The effects of restoring `origin` into a version at a parallelism that the version allows.

    `is_own_savepoint`: a rescale has just taken it, so it is too new for a review. `ends`: the run that a rollback
    ends; it is still the latest run when the restore follows.
    """
    policy = ReviewPolicy.OFF if is_own_savepoint else ReviewPolicy(job.review_policy)
    unreviewed = _unreviewed_sentence(job, origin) if policy is not ReviewPolicy.OFF else ""
    target = restore_target(version, parallelism)
    state_mapping = mapping.mapping_report(origin.manifest, target, str(job.pk))
    final, first = state_mapping.refusal(allow_unmapped=True), state_mapping.refusal(allow_unmapped=False)
    sources = _sources(state_mapping, target)
    idle = _does_nothing(state_mapping, sources)
    idle_refusal = _idle_refusal(origin, version) if idle else None
    unallowed = Conflict("not-reviewed", unreviewed, origin.field) if policy is ReviewPolicy.REFUSE else None
    refusal = _batch_refusal(version) or _mapping_refusal(final, origin, version) or idle_refusal
    refusal = refusal or (unallowed if unreviewed else None)
    lost = _mapping_refusal(first, origin, version) if final is None else None
    repeated, warnings = repeated_output(job.pk, origin.manifest.checkpoint), _warnings(origin, version, idle=idle)
    if policy is ReviewPolicy.WARN and unreviewed:
        warnings = (*warnings, unreviewed)
    place = (origin.manifest.checkpoint, origin.manifest.token, origin.path, version.pk, parallelism, ends and ends.pk)
    counted = "until the run ends" if ends else repeated
    effects = (refusal and refusal.detail, lost and lost.detail, counted, warnings, sources, str(state_mapping))
    return RestoreReport(
        refusal=refusal,
        lost=lost,
        repeated=repeated,
        warnings=warnings,
        sources=sources,
        mapping=state_mapping,
        plan_hash=blake2s(repr((place, effects)).encode(), digest_size=16).hexdigest(),
    )


def restore_target(version: JobVersion, parallelism: int) -> RestoreTarget:
    """The operators of a compiled version as a run at `parallelism` has them."""
    return msgspec.convert(version.graph, RestoreTarget).for_parallelism(parallelism)


def _sources(state_mapping: MappingReport, target: RestoreTarget) -> SourceMapping:
    roles = {operator.uid: operator.role for operator in target.operators}
    operators = [source for source in state_mapping.operators if roles.get(source.uid) is Role.SOURCE]
    continued, new, finished = (
        tuple(source.uid for source in operators if source.fate is fate)
        for fate in (OperatorMatch.MATCHED, OperatorMatch.NEW, OperatorMatch.FINISHED)
    )
    return SourceMapping(continued=continued, new=new, finished=finished)


def _does_nothing(state_mapping: MappingReport, sources: SourceMapping) -> bool:
    """Whether a restored run would end at once: all restored operators had finished, and no source is new."""
    fates = [operator.fate for operator in state_mapping.operators if operator.fate is not OperatorMatch.DROPPED]
    return (
        OperatorMatch.FINISHED in fates
        and set(fates) <= {OperatorMatch.FINISHED, OperatorMatch.NEW}
        and not sources.new
    )


def _idle_refusal(origin: Origin, version: JobVersion) -> Refused | None:
    """The refusal of an idle restore; None if the checkpoint's run is unfinished and may have pending committables."""
    if origin.checkpoint is None or origin.checkpoint.run.run_state is not RunState.FINISHED:
        return None
    return Conflict(
        "nothing-left",
        f"{origin.name} leaves nothing to do: every operator of version {version.number} had finished, so a run "
        "restored from it would end at once. Restore an earlier checkpoint, or start from empty state.",
        field=origin.field,
    )


def require_restorable(
    job: Job,
    origin: Origin,
    version: JobVersion,
    parallelism: int,
    params: RestoreParams,
    *,
    is_own_savepoint: bool = False,
    ends: Run | None = None,
) -> RestoreReport:
    """The report, if dropped state and repeated output are accepted. `is_own_savepoint`, `ends`: as in `report`.

    Raises:
        Refused: the checkpoint cannot be restored with these parameters.
        Conflict: newer output is committed, and its repetition is not accepted.
    """
    effects = require_mapping(
        job, origin, version, parallelism, allow_unmapped=params.allow_unmapped, plan_hash=params.plan_hash,
        is_own_savepoint=is_own_savepoint, ends=ends,
    )  # fmt: skip
    if params.accept_repeated_output:
        return effects
    if effects.repeated is not None:
        detail = f"{effects.repeated} after it: restoring {origin.name.lower()} repeats their output."
        raise _repetition_conflict(effects.repeated, f"{detail} Accept repeated output, or choose a newer checkpoint.")
    if ends is not None:
        detail = f"The run may commit output until it ends: restoring {origin.name.lower()} repeats it."
        raise Conflict("repeats-output", f"{detail} Accept repeated output.", "params.accept_repeated_output")
    return effects


def require_mapping(
    job: Job,
    origin: Origin,
    version: JobVersion,
    parallelism: int,
    *,
    allow_unmapped: bool,
    plan_hash: str | None = None,
    is_own_savepoint: bool = False,
    ends: Run | None = None,
) -> RestoreReport:
    """The report of a restore that finds its state in `version`. `plan_hash`: of the report that the user has read.
    `is_own_savepoint`, `ends`: as in `report`.

    Raises:
        Refused: the checkpoint cannot be restored with these parameters.
        Conflict: its effects differ from those that the user has read.
    """
    effects = report(job, origin, version, parallelism, is_own_savepoint=is_own_savepoint, ends=ends)
    if plan_hash not in (None, effects.plan_hash):
        detail = "The effects of this restore are no longer those that were shown. Nothing was done: read the new plan."
        raise Conflict("plan-changed", detail, "params.plan_hash", plan_hash=effects.plan_hash)
    if effects.refusal is not None:
        raise effects.refusal
    if effects.lost is not None and not allow_unmapped:
        raise effects.lost
    return effects


def require_no_repetition(job: Job) -> None:
    """Checks that a start from empty state repeats no output. Callers skip the check if the user accepts repetition.

    Raises:
        Conflict: the job has committed output.
    """
    if repeated := repeated_output(job.pk):
        detail = f"{repeated}: a start from empty state writes their output again. Accept repeated output, or restore"
        raise _repetition_conflict(repeated, f"{detail} one of these checkpoints instead.")


def _repetition_conflict(repeated: RepeatedCheckpoints, detail: str) -> Conflict:
    field, first, last = "params.accept_repeated_output", repeated.first, repeated.last
    return Conflict("repeats-output", detail, field, first=first, last=last)


def committed_checkpoints(job_id: Any) -> QuerySet[Checkpoint]:
    """The checkpoints of a job whose output is committed; `job_id` may be an expression.

    Every completed checkpoint commits, except a plain savepoint, of which sinks are not notified.
    """
    return Checkpoint.objects.filter(job_id=job_id, status=Status.COMPLETED).exclude(kind=Kind.SAVEPOINT)


def repeated_output(job_id: int, after: int = 0) -> RepeatedCheckpoints | None:
    """The checkpoints after number `after` whose output is committed."""
    newer = committed_checkpoints(job_id).filter(number__gt=after)
    numbers = tuple(newer.order_by("number").values_list("number", flat=True)[: MAX_COUNTED + 1])
    if not numbers:
        return None
    last = numbers[-1] if len(numbers) <= MAX_COUNTED else newer.aggregate(last=Max("number"))["last"]
    return RepeatedCheckpoints(first=numbers[0], last=last, number=len(numbers))


def _batch_refusal(version: JobVersion) -> Refused | None:
    """The refusal for a version in BATCH, which always reads its inputs from the beginning."""
    if not version.is_batch:
        return None
    detail = f"Version {version.number} runs in BATCH and cannot be restored: start it, or choose another version."
    return Conflict("batch-restore", detail, field="params.version")


def _mapping_refusal(problem: RestoreProblem | None, origin: Origin, version: JobVersion) -> Refused | None:
    """A mapping problem as a refusal that names the checkpoint, the version and the request's parameter at fault."""
    if problem is None:
        return None
    detail = f"{origin.name} cannot be restored into version {version.number}: {problem.field}: {problem.detail}."
    if problem.field == "checkpoint":
        return Refused(problem.code, detail, origin.field)
    if problem.field == "max_parallelism":
        return Refused(problem.code, detail, "params.version")
    return Refused(problem.code, detail, "params.version", operator=problem.field)


def _unreviewed_sentence(job: Job, origin: Origin) -> str:
    """Why `origin` is not the reviewed checkpoint that the policy of the job asks for; "" if it is reviewed."""
    state = ReviewState(origin.checkpoint.review_state) if origin.checkpoint else ReviewState.UNREVIEWED
    if state is ReviewState.REVIEWED:
        return ""
    present = "is not reviewed" if state is ReviewState.UNREVIEWED else f"is {state.replace('_', ' ')}"
    return f"{origin.name} {present}, and the policy of job {job.name} is to restore from reviewed snapshots only."


def _warnings(origin: Origin, version: JobVersion, *, idle: bool) -> tuple[str, ...]:
    ended = (
        "This run would end at once: every operator had finished, so it reads no input and only commits the "
        "savepoint's pending output."
    )
    drained = (
        "This savepoint was taken by a drain: windows fired early and their results were committed, so the output may "
        "differ from that of an uninterrupted job."
    )
    is_drained = origin.manifest.kind is CheckpointKind.DRAIN
    sentences = tuple(text for text, applies in ((ended, idle), (drained, is_drained)) if applies)
    is_own_copy = origin.checkpoint is not None and origin.path in ("", origin.checkpoint.path)
    damage = found_damage(origin.checkpoint) if origin.checkpoint and is_own_copy else ""
    if damage:
        sentences += (f"The last check of this {noun(origin.manifest.kind)} found damage: {damage}",)
    if change := package_change(version):
        executed = f"The run executes the installed code of {change.after}, whose graph may differ from these effects."
        sentences += (f"Version {version.number} was defined with {change.before}. {executed}",)
    return sentences
