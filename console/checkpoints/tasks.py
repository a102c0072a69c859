"""Celery tasks: each wakes one service. A repeated or late message does no harm."""

from celery import shared_task

from console.checkpoints import state_stage


@shared_task
def answer_state_query(query_id: int) -> None:
    state_stage.answer(query_id)
