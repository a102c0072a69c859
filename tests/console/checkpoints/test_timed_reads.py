"""Reads of storage with a time limit."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from console.accounts.refusals import Refused
from console.checkpoints import timed_reads
from console.checkpoints.timed_reads import read_in_time
from tests.waiting import until

WAIT_S = 30


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Set once the storage answers."""
    monkeypatch.setattr(timed_reads, "TIMEOUT_S", 0.1)
    event = Event()
    yield event
    event.set()
    until(lambda: all(read.result.done() for read in timed_reads._reads.values()))
    timed_reads._reads.clear()


def hanging(answers: Event, result: str = "found") -> Callable[[], str]:
    def load() -> str:
        assert answers.wait(WAIT_S)
        return result

    return load


def test_a_later_request_gets_the_result_of_a_read_that_hung(answers: Event) -> None:
    for _ in range(2):
        with pytest.raises(Refused, match="Checkpoint storage does not answer") as refused:
            read_in_time("a", hanging(answers))
        assert refused.value.code == "storage-away"
    answers.set()
    until(timed_reads._reads["a"].result.done)
    assert read_in_time("a", lambda: "read again") == "found"
    assert not timed_reads._reads


def test_a_read_that_has_just_begun_hangs_no_other(answers: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two requests at the same time was refused at once, as if the storage did not answer."""
    monkeypatch.setattr(timed_reads, "TIMEOUT_S", WAIT_S)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(read_in_time, "a", hanging(answers))
        until(lambda: "a" in timed_reads._reads)
        second = threads.submit(read_in_time, "b", hanging(answers, "other"))
        until(lambda: "b" in timed_reads._reads)
        answers.set()
        assert (first.result(WAIT_S), second.result(WAIT_S)) == ("found", "other")


def test_a_read_whose_thread_cannot_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result was waited for until the end of the worker, and no other snapshot was read in time."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", fail)
        with pytest.raises(RuntimeError):
            read_in_time("a", lambda: "found")
    assert read_in_time("a", lambda: "found") == "found"
    assert not timed_reads._reads


def test_a_result_that_no_request_takes_is_dropped(answers: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused):
        read_in_time("a", hanging(answers, "of a minute ago"))
    answers.set()
    until(timed_reads._reads["a"].result.done)
    monkeypatch.setattr(timed_reads, "KEPT_S", 0.0)
    assert read_in_time("a", lambda: "of now") == "of now"


def test_reads_that_hang_are_not_more_than_the_limit(answers: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_reads, "MAX_HANGING", 2)
    for key in "abcd":
        with pytest.raises(Refused):
            read_in_time(key, hanging(answers))
        until(lambda: all(read.is_hanging for read in timed_reads._reads.values()))
    assert list(timed_reads._reads) == ["a", "b"]
    answers.set()
    until(lambda: all(read.result.done() for read in timed_reads._reads.values()))
    assert read_in_time("c", lambda: "found") == "found"
