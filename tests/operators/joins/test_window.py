"""Window joins against a loop over records: disorder, lateness, restores at another parallelism."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.core.job.messages import MAX_WATERMARK
from runtime.operators.joins.columns import JoinColumns
from runtime.operators.joins.window import WINDOW_COLUMNS, WindowJoin
from tests.example_counts import examples
from tests.operators.harness import Harness
from tests.operators.joins.subtasks import SIDES, STEPS, Event, Oracle, batch, run, unequal_watermarks

COLUMNS = JoinColumns((("k", "key"),), added=WINDOW_COLUMNS)
SHAPES = [(4, 4), (6, 3), (5, 2), (7, 3), (4, 1), (13, 2)]


class WindowOracle(Oracle):
    """Windows that have not fired, by key and start."""

    def __init__(self, size: int, slide: int) -> None:
        super().__init__()
        self.size, self.slide = size, slide
        self.waiting: list[tuple[int, Event, Event]] = []

    def starts(self, time: int) -> list[int]:
        last = time // self.slide * self.slide
        return [start for start in range(last, last - self.size, -self.slide) if start + self.size > time]

    def is_late(self, time: int, watermark: int) -> bool:
        return all(start + self.size - 1 <= watermark for start in self.starts(time))

    def meet(self, record: Event, other: Event) -> None:
        for start in set(self.starts(record[1])) & set(self.starts(other[1])):
            if start + self.size - 1 > self.watermarks[record[0]]:
                self.waiting.append((start, record, other))

    def advance(self, keys: list[str | None], watermark: int) -> None:
        super().advance(keys, watermark)
        fired = [pair for pair in self.waiting if pair[0] + self.size - 1 <= self.watermarks[pair[1][0]]]
        self.waiting = [pair for pair in self.waiting if pair not in fired]
        for start, record, other in fired:
            self.pairs[record, other, start, start + self.size] += 1


def check(shape: tuple[int, int], steps: list[Any]) -> None:
    oracle = WindowOracle(*shape)
    subtasks = run(lambda: WindowJoin(SIDES, *shape, COLUMNS), oracle, [*steps, ("watermark", MAX_WATERMARK, None)])
    assert subtasks.pairs(*WINDOW_COLUMNS) == oracle.pairs
    assert subtasks.late == oracle.late
    assert subtasks.counted == oracle.late.total()


@settings(deadline=None, max_examples=examples(60))
@given(st.sampled_from(SHAPES), STEPS)
def test_pairs_and_late_rows_are_those_of_a_loop_over_records(shape: tuple[int, int], steps: list[Any]) -> None:
    """Batches, watermarks, snapshots and rescales in any order. Subtasks differ in their watermarks."""
    check(shape, steps)


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_window_that_has_fired_for_a_key_fires_no_more(shape: tuple[int, int], index: int) -> None:
    """The new owner starts from the lowest watermark of all former owners."""
    check(shape, unequal_watermarks(index))


@pytest.mark.parametrize("shape", SHAPES)
def test_state_is_freed_with_the_last_window(shape: tuple[int, int]) -> None:
    subtask = Harness(WindowJoin(SIDES, *shape, COLUMNS))
    for time in range(203):
        subtask.process(batch(0, [(f"key {time}", time, 0)]), 0)
        subtask.process(batch(1, [("b", time, 0)]), 1)
        subtask.watermark(time)
        subtask.operator.snapshot(time)
    join = subtask.operator
    assert isinstance(join, WindowJoin)
    assert all(0 < rows <= shape[0] + max(shape[1], shape[0] // 4) for rows in (len(side.kept) for side in join._sides))
    subtask.watermark(MAX_WATERMARK)
    subtask.operator.snapshot(999)
    assert [len(side.kept) for side in join._sides] == [0, 0]
    assert len(join._index) == 0
    assert [len(subtask.state.tables[name]) for name in ("first", "second")] == [0, 0]


def test_windows_far_apart_and_longer_than_a_bucket() -> None:
    """A window of a hundred years has many buckets; the windows between two rows are not visited one by one."""
    year = 365 * 24 * 3_600_000
    subtask = Harness(WindowJoin(SIDES, 100 * year, 100 * year, COLUMNS))
    subtask.process(batch(0, [("a", year, 1), ("a", 99 * year, 2), ("a", 500 * year, 3)]), 0)
    subtask.process(batch(1, [("a", 98 * year, 4), ("a", 501 * year, 5)]), 1)
    assert sorted((row["v"], row["w"]) for row in subtask.watermark(MAX_WATERMARK)) == [(1, 4), (2, 4), (3, 5)]
    short = Harness(WindowJoin(SIDES, 1, 1, COLUMNS))
    short.process(batch(0, [("a", 0, 1), ("a", 500 * year, 2)]), 0)
    short.process(batch(1, [("a", 500 * year, 3)]), 1)
    assert [(row["v"], row["w"]) for row in short.watermark(MAX_WATERMARK)] == [(2, 3)]


def test_overlapping_windows_with_thousands_of_starts() -> None:
    """A window takes its rows from a few buckets, not from a bucket per slide."""
    subtask = Harness(WindowJoin(SIDES, 10_000, 1, COLUMNS))
    subtask.watermark(19_894)
    subtask.process(batch(0, [("a", time, 0) for time in range(9_900, 20_000, 5)]), 0)
    subtask.process(batch(1, [("b", time, 0) for time in range(9_900, 20_000, 5)]), 1)
    subtask.process(batch(1, [("a", 19_895, 1)]), 1)
    assert [len(subtask.watermark(time)) for time in range(19_894, 19_901)] == [0, *[2_000] * 6]


def test_rows_of_open_windows_are_counted_for_the_console() -> None:
    harness = Harness(WindowJoin(SIDES, 4, 4, COLUMNS))
    assert harness.operator.open_results() == {"joined": 0}
    harness.operator.process(0, batch(0, [("a", 1, 0), ("a", 5, 1)]), harness.out)
    harness.operator.process(1, batch(1, [("a", 2, 0)]), harness.out)
    assert harness.operator.open_results() == {"joined": 3}
    harness.operator.on_watermark(3, harness.out)
    assert harness.operator.open_results() == {"joined": 1}
