"""Celery tasks; each calls a service. A repeated or late message has no effect."""

from celery import shared_task

from console import wakeups
from console.runs import stage_supervisor, supervisor


@shared_task(name=wakeups.SUPERVISE)
def supervise_run(run_id: int) -> None:
    supervisor.supervise(run_id)


@shared_task(name=wakeups.STAND)
def attend_stage(stage_id: int) -> None:
    stage_supervisor.attend(stage_id)
