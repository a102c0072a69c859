"""Celery tasks; each calls a service. A repeated or late message has no effect."""

from celery import shared_task

from console.operations import lineage_folders, reconciler


@shared_task
def reconcile() -> None:
    reconciler.reconcile()


@shared_task
def remove_lineage_folders() -> None:
    lineage_folders.remove_unused_folders()
