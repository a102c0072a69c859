"""The rows of standing stages: PySpark stages that live as long as their run does.

A row is created with its run and leased by its own task. Every claim and every end is a compare-and-set on the locked
row.
"""

from typing import Any

import msgspec
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from console import wakeups
from console.jobs.models import Run, StageState, StandingStage
from console.runs.lease import UNOWNED, next_token, owned_by
from runtime.core.job.lifecycle import TERMINAL_STATES, RunState

ENDED_STATES = (StageState.DONE, StageState.ENDED, StageState.FAILED)
#: States of a run whose stages need a process.
_ACTIVE_RUN_STATES = tuple(state for state in RunState if state not in TERMINAL_STATES)


class StageReport(msgspec.Struct, frozen=True):
    """A report line of a stage: `steps` that its process has completed, and `figures` for people."""

    steps: int = 0
    figures: list[dict[str, Any]] = []


def create(run: Run) -> None:
    """Creates the stages that the graph of the run's version needs. Call it in the transaction that creates the run."""
    operators = (run.version.graph or {}).get("operators", ())
    stages = [StandingStage(run=run, operator=op["uid"], verb=op["stage"]) for op in operators if op.get("stage")]
    for stage in StandingStage.objects.bulk_create(stages):
        wakeups.after_commit(wakeups.STAGE_TASK, stage.pk)


def claim(stage_id: int, owner: str) -> StandingStage | None:
    """Claims a stage that no task supervises. None if another task was first or the run no longer needs the stage."""
    with transaction.atomic():
        locked = claimable().select_for_update(no_key=True, of=("self",)).select_related("run__version__job")
        stage = locked.filter(pk=stage_id).first()
        if stage is not None:
            StandingStage.objects.filter(pk=stage_id).update(**owned_by(owner), state=StageState.STARTING.value)
        return stage


def begin(stage_id: int, owner: str) -> int | None:
    """Records the start of the next process and returns its token. None if the lease has another owner."""
    if not _owned_stage(stage_id, owner).update(
        token=next_token(), state=StageState.STARTING.value, live=None, live_at=None
    ):
        return None
    return StandingStage.objects.values_list("token", flat=True).get(pk=stage_id)


def renew(stage_id: int, owner: str, report: StageReport | None = None) -> bool:
    """Renews the lease and stores the newest report. False if the lease has another owner.

    A report without figures and steps only shows that the process lives: Spark is still starting.
    """
    changes: dict[str, Any] = {}
    if report is not None:
        changes = {"live": msgspec.to_builtins(report), "live_at": Now()}
    if report is not None and (report.figures or report.steps):
        changes["state"] = StageState.RUNNING.value
    return bool(_owned_stage(stage_id, owner).update(lease_beat=F("lease_beat") + 1, **changes))


def is_wanted(stage_id: int) -> bool:
    """Whether the run of the stage has not ended."""
    return StandingStage.objects.filter(pk=stage_id, run__state__in=_ACTIVE_RUN_STATES).exists()


def record_death(stage_id: int, owner: str, reason: str) -> bool:
    """Records that the process died and will be started again. False if the lease has another owner."""
    died = {"state": StageState.RESTARTING.value, "deaths": F("deaths") + 1, "reason": reason}
    return bool(_owned_stage(stage_id, owner).update(**died))


def release(stage_id: int, owner: str) -> bool:
    """Releases the stage for another task to claim."""
    return _release(Q(pk=stage_id, lease_owner=owner), stage_id)


def revoke_lease(stage_id: int, beat: int) -> bool:
    """Releases the stage. False if `lease_beat` is no longer `beat`, or if the stage has no owner."""
    return _release(Q(pk=stage_id, lease_beat=beat) & ~Q(lease_owner=""), stage_id)


def end(stage_id: int, owner: str, state: StageState, reason: str = "") -> bool:
    """Records that no further process follows. False if the lease has another owner."""
    return bool(_owned_stage(stage_id, owner).update(**UNOWNED, state=state.value, reason=reason))


def end_orphaned_stages() -> None:
    """Ends the stages of ended runs that no task supervises."""
    left = StandingStage.objects.filter(run__state__in=TERMINAL_STATES, lease_owner="").exclude(state__in=ENDED_STATES)
    left.update(state=StageState.ENDED.value)


def claimable() -> QuerySet[StandingStage]:
    """The stages that a task should claim."""
    return StandingStage.objects.filter(lease_owner="", run__state__in=_ACTIVE_RUN_STATES).exclude(
        state__in=ENDED_STATES
    )


def _release(only: Q, stage_id: int) -> bool:
    with transaction.atomic():
        left = StandingStage.objects.filter(only).update(**UNOWNED, state=StageState.WAITING.value)
        if left:
            wakeups.after_commit(wakeups.STAGE_TASK, stage_id)
    return bool(left)


def _owned_stage(stage_id: int, owner: str) -> QuerySet[StandingStage]:
    return StandingStage.objects.filter(pk=stage_id, lease_owner=owner)
