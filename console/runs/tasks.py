"""Celery tasks; each calls a service. A repeated or late message has no effect."""

from celery import shared_task

from console import wakeups
from console.runs import run_supervisor, stage_supervisor


@shared_task(name=wakeups.SUPERVISE_TASK)
def supervise_run(run_id: int) -> None:
    run_supervisor.supervise(run_id)


@shared_task(name=wakeups.STAGE_TASK)
def attend_stage(stage_id: int) -> None:
    stage_supervisor.supervise(stage_id)
