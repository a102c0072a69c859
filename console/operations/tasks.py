"""Celery tasks: each wakes one service. A repeated or late message does no harm."""

from celery import shared_task

from console.operations import reconciler


@shared_task
def reconcile() -> None:
    reconciler.reconcile()
