"""The garbage collector of a slot's process."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from runtime.hosts import collector


class Node:
    """Refers to itself: only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _own_settings() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_is_there_is_not_walked_any_more() -> None:
    collector.settle()
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects(generation=2)) < 1_000


def test_what_an_attempt_leaves_behind_is_freed_before_the_next() -> None:
    node = Node()
    gone = weakref.ref(node)
    collector.settle()
    del node
    gc.collect()
    assert gone() is not None, "it was set aside with all else"
    collector.settle()
    assert gone() is None


def test_cycles_that_a_function_makes_are_freed_while_it_runs() -> None:
    collector.settle()
    first = weakref.ref(Node())
    kept = [Node() for _ in range(20_000)]
    assert first() is None
    assert len(kept) == 20_000
