"""Celery tasks; each calls a service. A repeated or late message has no effect."""

from celery import shared_task

from console.checkpoints import state_stage


@shared_task
def answer_state_query(query_id: int) -> None:
    state_stage.answer(query_id)
