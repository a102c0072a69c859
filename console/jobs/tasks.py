"""Celery tasks; each calls a service. A repeated or late message has no effect."""

from celery import shared_task

from console.jobs import compilation, pipelines, stage_supervisor, supervisor


@shared_task
def supervise_run(run_id: int) -> None:
    supervisor.supervise(run_id)


@shared_task
def attend_stage(stage_id: int) -> None:
    stage_supervisor.attend(stage_id)


@shared_task
def compile_version(version_id: int) -> None:
    compilation.compile_version(version_id)


@shared_task
def sync_pipelines() -> None:
    pipelines.sync()
