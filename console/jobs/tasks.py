"""Celery tasks; each calls a service. A repeated or late message has no effect."""

from celery import shared_task

from console import wakeups
from console.jobs import compilation, pipelines


@shared_task(name=wakeups.COMPILE_TASK)
def compile_version(version_id: int) -> None:
    compilation.compile_version(version_id)


@shared_task
def sync_pipelines() -> None:
    pipelines.sync()
