"""The garbage collector of a slot's process, and the lock of its interpreter."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from runtime.slot import process_tuning


class Node:
    """Refers to itself: only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _own_settings() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)  # what is frozen stays so, as after the collection of tests


def test_what_is_there_is_not_walked_any_more() -> None:
    process_tuning.freeze_heap()
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects(generation=2)) < 1_000


def test_what_an_attempt_leaves_behind_is_freed_before_the_next() -> None:
    node = Node()
    reference = weakref.ref(node)
    process_tuning.freeze_heap()
    del node
    gc.collect()
    assert reference() is not None, "it was set aside with all else"
    process_tuning.freeze_heap()
    assert reference() is None


def test_cycles_that_a_function_makes_are_freed_while_it_runs() -> None:
    process_tuning.freeze_heap()
    first = weakref.ref(Node())
    nodes = [Node() for _ in range(20_000)]
    assert first() is None
    assert len(nodes) == 20_000


def test_old_cycles_are_freed_too_where_the_process_keeps_growing() -> None:
    process_tuning.freeze_heap()
    size = 0
    relief = process_tuning.GrowthCollector(lambda: size)
    node = Node()
    reference = weakref.ref(node)
    for _ in range(3):
        gc.collect(1)  # it is old now
    del node
    relief.collect_on_growth()
    assert reference() is not None, "nothing has grown"
    for _ in range(10):
        size += process_tuning.MAX_GROWTH_BYTES
        relief.collect_on_growth()
    assert reference() is None


#: A function that leaves a cycle behind per batch, with the batch in it: a hundred times a megabyte between two looks.
HEAVY = """
import numpy, psutil
from runtime.slot import process_tuning as collector

def function(batch):
    def again():
        return again, batch
    return batch

collector.freeze_heap()
relief, most, first = collector.GrowthCollector(), 0, collector.resident_bytes()
for number in range(1_000):
    function(numpy.ones(131_072))
    if number % 100 == 0:
        most = max(most, collector.resident_bytes() - first)
        relief.collect_on_growth()
print(most // 2**20)
"""


def test_cycles_that_hold_batches_do_not_fill_the_memory() -> None:
    process = subprocess.run([sys.executable, "-c", HEAVY], capture_output=True, text=True, check=True)
    assert int(process.stdout) < 400


#: The interval before, after, and in a fork. What it gains is a measurement, which other processes disturb (0037).
INTERVALS = """
import os, sys
from runtime.slot import process_tuning

before = sys.getswitchinterval()
process_tuning.shorten_switch_interval()
after = sys.getswitchinterval()
if (child := os.fork()) == 0:
    os._exit(sys.getswitchinterval() != after)
print(after < before, os.waitpid(child, 0)[1])
"""


def test_a_busy_thread_keeps_the_lock_for_a_shorter_time_also_in_forks() -> None:
    assert subprocess.check_output([sys.executable, "-c", INTERVALS], text=True) == "True 0\n"
