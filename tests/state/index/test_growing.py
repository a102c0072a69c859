"""Arrays that grow in place: what they hold, what was handed out before, and that nothing is copied."""

import mmap
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from runtime.state.index.growing import GrowingArray
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import TableSchema

LARGE = 1 << 18  #: int64: enough to lie in pages of its own


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("count", [3, LARGE])
@pytest.mark.parametrize("is_viewed", [False, True], ids=["unseen", "looked at"])
def test_it_keeps_what_it_holds_and_has_zeroes_behind(count: int, is_viewed: bool) -> None:
    numbers = GrowingArray(np.int64, count)
    numbers.data[:] = np.arange(1, count + 1)
    view = numbers.data if is_viewed else None
    numbers.grow(3 * count)
    assert len(numbers) == 3 * count
    assert (numbers.data[:count] == np.arange(1, count + 1)).all()
    assert not numbers.data[count:].any()
    if view is not None:
        numbers.data[:] = 0
        assert (view == np.arange(1, count + 1)).all(), "it has become another array, but it is still there"


def test_growing_to_the_length_that_it_has_changes_nothing() -> None:
    numbers = GrowingArray(np.int32, 5)
    view = numbers.data
    numbers.grow(5)
    view[2] = 7
    assert numbers.data.tolist() == [0, 0, 7, 0, 0]


def test_arrow_may_look_at_it_while_it_grows() -> None:
    """A capture decodes in another thread while new values come."""
    numbers = GrowingArray(np.int64, LARGE)
    numbers.data[:] = 5
    array = pa.array(numbers.data[:10])
    numbers.grow(4 * LARGE)
    numbers.data[:] = 6
    assert array.to_pylist() == [5] * 10


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="only Linux moves pages")
def test_a_large_one_grows_without_a_copy() -> None:
    numbers = GrowingArray(np.int64, 1 << 23)
    numbers.data[:] = 1
    before = resident_bytes()
    numbers.grow(1 << 25)
    assert resident_bytes() - before < (1 << 26) / 4, "a copy would be as large as what it holds"
    assert numbers.data[-1] == 0


def test_a_system_without_large_pages_has_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers and small kernels may refuse the advice, which nothing but speed depends on."""
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 10_000)
    numbers = GrowingArray(np.int64, LARGE)
    numbers.grow(2 * LARGE)
    assert not numbers.data.any()


def test_a_table_grows_while_its_columns_are_looked_at() -> None:
    keys, values = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])
    table = KeyedTable(TableSchema("t", keys, values), 128)
    slots = table.upsert([pa.array(range(LARGE))])
    before, codes = table.column("n"), table.key_codes("k")
    before[slots] = slots
    table.upsert([pa.array(range(LARGE, 2 * LARGE))])
    table.column("n")[slots] += 1
    assert (before[slots] == slots).all()
    assert (codes[slots] == np.arange(LARGE)).all()
    assert (table.column("n")[slots] == slots + 1).all()
