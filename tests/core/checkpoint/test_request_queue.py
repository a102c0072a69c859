"""Which request goes next."""

from runtime.core.checkpoint.events import CheckpointRequested
from runtime.core.checkpoint.request_queue import QUEUE_CAPACITY, RequestQueue
from runtime.core.job.messages import CheckpointKind

PERIODIC = CheckpointRequested(0, CheckpointKind.CHECKPOINT)


def user(at: int, kind: CheckpointKind = CheckpointKind.CHECKPOINT) -> CheckpointRequested:
    return CheckpointRequested(at, kind, f"op{at}")


def test_savepoints_before_people_before_the_clock_before_age() -> None:
    queue = RequestQueue()
    for request in (PERIODIC, user(2), user(1), user(3, CheckpointKind.SAVEPOINT)):
        assert queue.add(request) is None
    order = [queue.take(0, 1) for _ in range(4)]
    assert order == [user(3, CheckpointKind.SAVEPOINT), user(1), user(2), PERIODIC]
    assert queue.take(0, 1) is None


def test_at_most_one_periodic_request_waits() -> None:
    """S2-09."""
    queue = RequestQueue()
    assert queue.add(PERIODIC) is None
    later = CheckpointRequested(9, CheckpointKind.CHECKPOINT)
    assert queue.add(later) is later


def test_nothing_is_taken_while_as_many_as_allowed_are_pending() -> None:
    """S2-10."""
    queue = RequestQueue()
    queue.add(PERIODIC)
    assert queue.take(1, 1) is None
    assert queue.take(1, 2) == PERIODIC


def test_a_full_queue_turns_the_least_urgent_away() -> None:
    queue = RequestQueue()
    for at in range(QUEUE_CAPACITY):
        assert queue.add(user(at)) is None
    urgent = user(QUEUE_CAPACITY, CheckpointKind.SAVEPOINT)
    assert queue.add(urgent) == user(QUEUE_CAPACITY - 1)
    assert queue.take(0, 1) == urgent


def test_clearing_returns_what_was_given_up() -> None:
    queue = RequestQueue()
    queue.add(user(1))
    assert queue.clear() == [user(1)]
    assert queue.clear() == []
