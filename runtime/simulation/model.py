"""Operators of the simulator, in plain Python, with the hooks of `runtime.ports.Operator`.

A record is a key and an event time. State is as in production: keyed state by key group, list state that a rescale
redistributes, union lists, and a broadcast table. The operators assert the guarantees of the runtime: no record after
`finish`, no late record, no second `close`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol
from zlib import crc32

from runtime.core.job.key_groups import key_group_of
from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK
from runtime.core.snapshot.commit import CommitPermit

Row = tuple[str, int]
Rows = list[Row]
KeyedState = dict[int, dict[str, int]]  #: key group, then name or key

MAX_PARALLELISM: Final = 8
WINDOW_MS: Final = 10
PAIR_MS: Final = 5
ROW_BYTES: Final = 10
MAX_HOPS: Final = 3
LOOK_MS: Final = 20  #: between looks of a source for new rows
LATE: Final = "late "  #: begins the key of a row that a window emits for a late record


def group_of(name: str) -> int:
    """The key group of a name or key. A straggler is in the group of the other rows of its key."""
    return key_group_of(crc32(name.lower().encode()), MAX_PARALLELISM)


def route(name: str, targets: int) -> int:
    """Index of the target subtask for custom partitioning, unrelated to key groups."""
    return crc32(name.encode()) // 3 % targets


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a source's input.

    A row follows rows whose event times are later by `disorder_ms` at most. Exempt are *stragglers*, which may be late
    at a window. Their key in lower case is that of their window. Without disorder, event times ascend.

    A split may pause: row `pauses_at` and all later rows exist from simulated time `resumes_ms` on. Each subtask
    discovers them by a look. The source is idle until then, so these rows must have later event times than all other
    rows of the job.
    """

    name: str
    rows: tuple[Row, ...]
    pauses_at: int | None = None
    resumes_ms: int = 0
    disorder_ms: int = 0

    def watermark_before(self, position: int) -> int:
        """The watermark of a reader whose next row is row `position`: just below all later rows but stragglers."""
        if not self.disorder_ms:
            return self.rows[position][1] - 1
        return max(time for _, time in self.rows[: max(1, position)]) - self.disorder_ms - 1

    def available_rows(self, looked_at: int) -> int:
        return len(self.rows) if self.pauses_at is None or looked_at >= self.resumes_ms else self.pauses_at


@dataclass(frozen=True, slots=True)
class OperatorImage:
    """The state of an operator subtask, copied at a barrier."""

    keyed: Mapping[int, Mapping[str, int]]
    held: tuple[Row, ...]
    table: tuple[str, ...]
    pooled: tuple[Row, ...] | None = None  #: union list; None: the operator has none


class Target(Protocol):
    """The external system behind a sink."""

    def prepare(self, name: str, rows: Sequence[Row]) -> None: ...
    def commit(self, permit: CommitPermit, names: Sequence[str]) -> None: ...


class ModelOperator:
    """Forwards records. Base class of all operators."""

    def __init__(self, groups: range) -> None:
        self.groups = groups
        self.keyed: KeyedState = {}
        self.held: Rows = []
        self.table: list[str] = []
        self.finished = False
        self.closed = False
        self.inputs_ended: set[int] = set()

    def restore(
        self, images: Iterable[OperatorImage], held: Sequence[Row], table: Sequence[str], pooled: Sequence[Row]
    ) -> None:
        for image in images:
            for group in set(image.keyed) & set(self.groups):
                assert group not in self.keyed, "two old subtasks held one key group"
                self.keyed[group] = dict(image.keyed[group])
        self.held, self.table = list(held), list(table)

    def image(self) -> OperatorImage:
        return OperatorImage({g: dict(rows) for g, rows in self.keyed.items()}, tuple(self.held), tuple(self.table))

    def process(self, input: int, rows: Rows) -> Rows:
        return rows

    def advance(self, time: int) -> Rows:
        return []

    def prepare(self, checkpoint: int) -> Rows:
        return []

    def settle(self) -> Rows:
        """Emits the held rows when a loop terminates."""
        return []

    def end_input(self, input: int) -> Rows:
        assert input not in self.inputs_ended, "end_input came twice"
        self.inputs_ended.add(input)
        return []

    def finish(self) -> Rows:
        assert not self.finished, "finish came twice"
        self.finished = True
        return []

    def commit(self, permit: CommitPermit) -> None:
        return

    def committables(self) -> tuple[Any, ...]:
        return ()

    def close(self) -> None:
        assert not self.closed, "close came twice"
        self.closed = True

    def _add(self, name: str, amount: int = 1) -> int:
        rows = self.keyed.setdefault(group_of(name), {})
        rows[name] = rows.get(name, 0) + amount
        return rows[name]


class SourceOperator(ModelOperator):
    """Reads the splits that hash to its key groups; the position in each split is keyed state."""

    def __init__(self, groups: range, splits: Sequence[Split], bounded: bool) -> None:
        super().__init__(groups)
        self.splits = [split for split in splits if group_of(split.name) in groups]
        self.bounded = bounded
        self.looked_at = -1  #: time of the last look for new rows
        self.discoveries = 0
        self.has_looked = True

    def look_for_splits(self) -> None:
        self.has_looked = False

    def _look(self, now: int) -> None:
        if self.has_looked and 0 <= self.looked_at > now - LOOK_MS:
            return
        before = [split.available_rows(self.looked_at) for split in self.splits] if self.looked_at >= 0 else []
        self.looked_at, self.has_looked = now, True
        self.discoveries += before != [split.available_rows(now) for split in self.splits]

    def position(self, split: Split) -> int:
        return self.keyed.get(group_of(split.name), {}).get(split.name, 0)

    @property
    def max_disorder_ms(self) -> int:
        return max((split.disorder_ms for split in self.splits), default=0)

    @property
    def has_emitted_all(self) -> bool:
        return all(self.position(split) == len(split.rows) for split in self.splits)

    @property
    def is_exhausted(self) -> bool:
        return self.bounded and self.has_emitted_all

    @property
    def idle(self) -> bool:
        """Whether no row is available and no bound of later event times is known: no splits, or a split pauses."""
        waiting = [split for split in self.splits if self.position(split) < len(split.rows)]
        nothing_now = all(self.position(split) == split.available_rows(self.looked_at) for split in self.splits)
        return (not self.bounded and not self.splits) or (nothing_now and bool(waiting))

    def poll(self, choice: int, max_rows: int, now: int) -> Rows:
        self._look(now)
        unread = [split for split in self.splits if self.position(split) < split.available_rows(self.looked_at)]
        if not unread:
            return []
        split = unread[choice % len(unread)]
        start = self.position(split)
        rows = list(split.rows[start : min(start + max_rows, split.available_rows(self.looked_at))])
        self.move(split, start + len(rows))
        return rows

    def move(self, split: Split, position: int) -> None:
        """Sets the next row of `split`."""
        self._add(split.name, position - self.position(split))

    def watermark(self) -> int | None:
        """A time just below all unread rows but stragglers. A fully read unbounded split counts with its last time."""
        times = []
        for split in self.splits:
            position = self.position(split)
            if position == split.pauses_at:
                times.append(split.rows[position - 1][1] if position else 0)
            elif position < len(split.rows):
                times.append(split.watermark_before(position))
            elif not self.bounded:
                times.append(max((time for _, time in split.rows), default=0))
        return min(times, default=None)


class ListSourceOperator(SourceOperator):
    """Keeps its splits in list state, an entry (name, position) per split, which a restore redistributes."""

    def __init__(self, groups: range, splits: Sequence[Split], bounded: bool, index: int, parallelism: int) -> None:
        super().__init__(groups, (), bounded)
        self.all_splits = {split.name: split for split in splits}
        self.splits = [split for split in splits if route(split.name, parallelism) == index]
        self.positions: dict[str, int] = {}

    def restore(
        self, images: Iterable[OperatorImage], held: Sequence[Row], table: Sequence[str], pooled: Sequence[Row]
    ) -> None:
        if not list(images):
            return
        self.positions = dict(held)
        self.splits = [self.all_splits[name] for name in self.positions]

    def image(self) -> OperatorImage:
        return OperatorImage({}, tuple((split.name, self.position(split)) for split in self.splits), ())

    def position(self, split: Split) -> int:
        return self.positions.get(split.name, 0)

    def move(self, split: Split, position: int) -> None:
        self.positions[split.name] = position


class BatchingOperator(ModelOperator):
    """Collects a few rows and forwards them together. Flushes before each barrier, so that its state has no rows."""

    def __init__(self, groups: range) -> None:
        super().__init__(groups)
        self.batch: Rows = []

    def process(self, input: int, rows: Rows) -> Rows:
        self.batch += rows
        return self._flush() if len(self.batch) > 3 else []

    def advance(self, time: int) -> Rows:
        return self._flush()

    def prepare(self, checkpoint: int) -> Rows:
        return self._flush()

    def settle(self) -> Rows:
        return self._flush()

    def finish(self) -> Rows:
        super().finish()
        return self._flush()

    def _flush(self) -> Rows:
        rows, self.batch = self.batch, []
        return rows

    def image(self) -> OperatorImage:
        assert not self.batch, "rows were not flushed before the barrier"
        return super().image()


class HoldingOperator(ModelOperator):
    """Keeps up to three rows in list state, like asynchronous look-ups in flight; `end_input` emits them."""

    def process(self, input: int, rows: Rows) -> Rows:
        self.held += rows
        ready, self.held = self.held[:-3], self.held[-3:]
        return ready

    def end_input(self, input: int) -> Rows:
        super().end_input(input)
        return self.settle()

    def settle(self) -> Rows:
        rows, self.held = self.held, []
        return rows


class PoolingOperator(HoldingOperator):
    """Holds rows in a union list: each restored subtask gets all rows and keeps the rows of its own key groups."""

    def restore(
        self, images: Iterable[OperatorImage], held: Sequence[Row], table: Sequence[str], pooled: Sequence[Row]
    ) -> None:
        super().restore(images, [row for row in pooled if group_of(row[0]) in self.groups], table, ())

    def image(self) -> OperatorImage:
        return replace(super().image(), held=(), pooled=tuple(self.held))


class LoopBodyOperator(ModelOperator):
    """Counts down the remaining iterations of each row, which the row's key holds behind a mark.

    It also counts rows by key in keyed state, so that the loop body has state.
    """

    def __init__(self, groups: range, mark: str) -> None:
        super().__init__(groups)
        self.mark = mark

    def process(self, input: int, rows: Rows) -> Rows:
        return [(self._next_key(key, time), time) for key, time in rows]

    def _next_key(self, key: str, time: int) -> str:
        self._add(key)
        plain, mark, left = key.partition(self.mark)
        if not mark:
            return f"{key}{self.mark}{crc32(f'{key}@{time}'.encode()) % MAX_HOPS}"
        return f"{plain}{self.mark}{int(left) - 1}"


class LoopBackOperator(ModelOperator):
    """Forwards the rows with remaining iterations."""

    def __init__(self, groups: range, mark: str) -> None:
        super().__init__(groups)
        self.mark = mark

    def process(self, input: int, rows: Rows) -> Rows:
        return [row for row in rows if not row[0].endswith(f"{self.mark}0")]


class LoopExitOperator(LoopBackOperator):
    """Emits the rows without remaining iterations, with their original keys."""

    def process(self, input: int, rows: Rows) -> Rows:
        return [(key.partition(self.mark)[0], time) for key, time in rows if key.endswith(f"{self.mark}0")]


class JoinOperator(ModelOperator):
    """Keeps the rows of input 0 whose key occurs on the build side, input 1.

    The table has an entry per row of the build side, so that a lost or duplicate row is detected at the end of input 1.
    """

    def __init__(self, groups: range, build: Counter[str]) -> None:
        super().__init__(groups)
        self.build = build  #: keys of all rows of the build side

    def process(self, input: int, rows: Rows) -> Rows:
        if input == 0:
            assert self._keys() == self.build, "a row of the probe side arrived before the build side was complete"
            return [row for row in rows if row[0] in self.build]
        self.table += [f"{key}#{place}" for place, (key, _) in enumerate(rows, len(self.table))]
        return []

    def end_input(self, input: int) -> Rows:
        if input == 1:
            assert self._keys() == self.build, "a row of the build side is missing or duplicate"
        return super().end_input(input)

    def _keys(self) -> Counter[str]:
        return Counter(entry.rpartition("#")[0] for entry in self.table)


class CountOperator(ModelOperator):
    """Emits the running count per key: a lost or duplicate record changes every later row of its key."""

    def process(self, input: int, rows: Rows) -> Rows:
        return [(key, self._add(key)) for key, _ in rows]


class EventTimeOperator(ModelOperator):
    """Base of operators whose state depends on the watermark."""

    def __init__(self, groups: range) -> None:
        super().__init__(groups)
        self.watermark = MIN_WATERMARK

    def advance(self, time: int) -> Rows:
        assert time > self.watermark, "the watermark went back"
        self.watermark = time
        return []

    def finish(self) -> Rows:
        super().finish()
        assert self.watermark == MAX_WATERMARK, "finish came before the maximum watermark"
        return []


class IntervalJoinOperator(EventTimeOperator):
    """Pairs rows of both inputs with equal keys whose times differ by at most `PAIR_MS`.

    The watermark frees rows. A pair has the later of both times.
    """

    def process(self, input: int, rows: Rows) -> Rows:
        pairs: Rows = []
        for key, time in rows:
            assert time > self.watermark, f"a late record: {time} behind {self.watermark}"
            kept = self.keyed.setdefault(group_of(key), {})
            for other in range(time - PAIR_MS, time + PAIR_MS + 1):
                pairs += [(key, max(time, other))] * kept.get(f"{key}/{1 - input}@{other}", 0)
            name = f"{key}/{input}@{time}"
            kept[name] = kept.get(name, 0) + 1
        return pairs

    def advance(self, time: int) -> Rows:
        for rows in self.keyed.values():
            for name in [name for name in rows if int(name.split("@")[1]) + PAIR_MS <= time]:
                del rows[name]
        return super().advance(time)


class WindowOperator(EventTimeOperator):
    """Counts per key and tumbling window; fires when the watermark reaches the end of the window."""

    def process(self, input: int, rows: Rows) -> Rows:
        late: Rows = []
        for key, time in rows:
            start = time - time % WINDOW_MS
            name = f"{key.lower()}@{start}"
            if start + WINDOW_MS - 1 > self.watermark:
                per_window = self.keyed.setdefault(group_of(key), {})
                per_window[name] = per_window.get(name, 0) + 1
            else:
                late.append(self.on_late(key, name))
        return late

    def on_late(self, key: str, name: str) -> Row:
        """The row to emit for a late record of window `name`."""
        raise AssertionError(f"a late record: {key} of {name} behind {self.watermark}")

    def advance(self, time: int) -> Rows:
        fired = super().advance(time)
        for rows in self.keyed.values():
            due = [name for name in rows if int(name.split("@")[1]) + WINDOW_MS - 1 <= time]
            fired += [(name, rows.pop(name)) for name in sorted(due)]
        return fired


class StragglerWindowOperator(WindowOperator):
    """A window that emits a row for each late straggler."""

    def on_late(self, key: str, name: str) -> Row:
        return (f"{LATE}{name}", 1) if key.isupper() else super().on_late(key, name)


class SinkOperator(ModelOperator):
    """Two-phase commit: rows are prepared before the barrier and committed with a permit."""

    def __init__(self, groups: range, target: Target, prefix: str) -> None:
        super().__init__(groups)
        self.target = target
        self.prefix = prefix
        self.rows: Rows = []
        self.prepared: dict[str, int] = {}  #: name -> checkpoint for which it was prepared

    def process(self, input: int, rows: Rows) -> Rows:
        self.rows += rows
        return []

    def prepare(self, checkpoint: int) -> Rows:
        if self.rows:
            name = f"{self.prefix}-{checkpoint}"
            self.target.prepare(name, self.rows)
            self.prepared[name] = checkpoint
            self.rows = []
        return []

    def commit(self, permit: CommitPermit) -> None:
        names = [name for name, checkpoint in self.prepared.items() if checkpoint <= permit.checkpoint]
        self.target.commit(permit, names)
        for name in names:
            del self.prepared[name]

    def committables(self) -> tuple[Any, ...]:
        return tuple(self.prepared)


class TeeOperator(SinkOperator):
    """A two-phase-commit operator within a stream: it commits the rows that it forwards."""

    def process(self, input: int, rows: Rows) -> Rows:
        super().process(input, rows)
        return rows
