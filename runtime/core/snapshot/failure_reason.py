"""Reasons why a checkpoint fails, as Flink's `CheckpointFailureReason` names them."""

from enum import StrEnum


class FailureReason(StrEnum):
    """The reason of a failed checkpoint. Names follow Flink's `CheckpointFailureReason`."""

    NOT_ALL_REQUIRED_TASKS_RUNNING = "not_all_required_tasks_running"
    TOO_MANY_REQUESTS = "too_many_requests"
    ID_UNAVAILABLE = "id_unavailable"
    TRIGGER_FAILED = "trigger_failed"
    DECLINED_TASK_NOT_READY = "declined_task_not_ready"
    DECLINED_SUBSUMED = "declined_subsumed"
    DECLINED_CANCEL_BARRIER = "declined_cancel_barrier"
    ASYNC_FAILED = "async_failed"
    EXPIRED = "expired"
    SUBSUMED = "subsumed"
    FINALIZE_FAILED = "finalize_failed"
    TASK_FINISHED_WHILE_TRIGGERED = "task_finished_while_triggered"
    UNION_STATE_PARTLY_FINISHED = "union_state_partly_finished"
    SUSPENDED = "suspended"  #: the coordinator stopped: restart, cancel, or the end of the job

    @property
    def is_counted(self) -> bool:
        """Whether the failure counts towards `tolerable_failed_checkpoints`."""
        return self in _COUNTED_REASONS

    @property
    def may_persist(self) -> bool:
        """Whether the cause may persist, so that an immediate retry may fail again."""
        return self not in _TRANSIENT_REASONS


_COUNTED_REASONS = frozenset(
    {
        FailureReason.ID_UNAVAILABLE,
        FailureReason.TRIGGER_FAILED,
        FailureReason.ASYNC_FAILED,
        FailureReason.EXPIRED,
        FailureReason.FINALIZE_FAILED,
    }
)


_TRANSIENT_REASONS = frozenset(
    {
        FailureReason.TASK_FINISHED_WHILE_TRIGGERED,
        FailureReason.UNION_STATE_PARTLY_FINISHED,  #: cannot recur at the last checkpoint: all subtasks have finished
        FailureReason.SUBSUMED,
        FailureReason.SUSPENDED,
    }
)
