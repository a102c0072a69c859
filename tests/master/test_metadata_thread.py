"""The end of the metadata thread while one of its calls hangs."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from runtime.errors import EnvironmentFailure
from runtime.master.metadata_thread import MetadataThread
from tests.waiting import until

NAME = "hung metadata"


class Hung:
    """A thread that hangs in `hang` until `release`."""

    def __init__(self) -> None:
        self._begun, self._released = threading.Event(), threading.Event()
        self.thread = MetadataThread(lambda error: pytest.fail(str(error)), NAME, call_limit_s=0.2)

    def hang(self, *_: Any) -> None:
        self._begun.set()
        assert self._released.wait(60)

    def abandon(self) -> None:
        assert self._begun.wait(60)
        self.thread.close(0.05)

    def release(self) -> None:
        self._released.set()
        until(lambda: all(thread.name != NAME for thread in threading.enumerate()), 60)


def note(calls: list[str], what: str) -> Callable[..., None]:
    return lambda *_: calls.append(what)


def test_a_thread_that_outlives_its_close_leaves_the_rest_of_the_queue() -> None:
    """The records have the token of the next attempt by then."""
    hung, calls = Hung(), list[str]()
    hung.thread.submit(hung.hang, note(calls, "result"))
    hung.thread.submit(note(calls, "queued"))
    hung.abandon()
    hung.thread.submit(note(calls, "last work of the attempt"))
    hung.release()
    assert calls == ["last work of the attempt"]


def test_a_commit_that_outlives_the_close_is_not_followed_by_deletions() -> None:
    hung, calls = Hung(), list[str]()

    def commit(_: Any) -> None:
        hung.hang()
        hung.thread.submit(note(calls, "deletions"))

    hung.thread.submit(note(calls, "record"), commit)
    hung.abandon()
    hung.release()
    assert calls == ["record"]


def test_a_call_that_does_not_return_is_hung_and_an_outage_is_not() -> None:
    hung, until_s = Hung(), time.monotonic() + 0.5

    def away() -> None:
        assert not hung.thread.is_hung
        if time.monotonic() < until_s:
            raise EnvironmentFailure("away")

    hung.thread.submit(away)
    hung.thread.submit(hung.hang)
    until(lambda: hung.thread.is_hung, 60)
    hung.abandon()
    hung.release()
    assert not hung.thread.is_hung
