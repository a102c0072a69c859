"""One live subtask of a source: idleness, and whom an error names."""

import threading
from typing import Any

import pyarrow as pa
import pytest

from runtime.core.checkpoint import CommitPermit
from runtime.core.events import Triggered
from runtime.core.ids import ChannelId, CheckpointId
from runtime.core.lead import BATCHES, Hearing, Lead
from runtime.core.messages import MIN_WATERMARK, Barrier, CheckpointKind, Idle, Message, Records, Watermark
from runtime.core.watermarks import Watermarks
from runtime.errors import DataRejected, OperatorFailure
from runtime.hosts.sources import SourceOperator
from runtime.hosts.task import WAITED, Task
from runtime.io.memory import ManualClock
from runtime.ports import OperatorContext, SourceReader
from tests.core.builders import chain, subtask
from tests.hosts.tasks import opened

GRAPH, SOURCE = chain(), subtask("a/0")
BATCH = pa.record_batch({"value": [1, 2]})
BARRIER = Barrier(CheckpointId(1), CheckpointKind.CHECKPOINT, 0)


class Reader(SourceReader):
    """Gives what is put into `ready`; raises at one place if it is told to."""

    def __init__(self, raises: str = "", error: Exception | None = None) -> None:
        self.ready: list[pa.RecordBatch] = []
        self.time: int | None = None
        self.quiet = False
        self.over = False
        self._raises, self._error = raises, error

    def _at(self, place: str) -> None:
        if place == self._raises and self._error is not None:
            raise self._error

    def open(self, context: OperatorContext) -> None:
        self._lists = context.state.list_state("positions")

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        self._at("poll")
        return self.ready.pop(0) if self.ready else None

    @property
    def exhausted(self) -> bool:
        self._at("exhausted")
        return self.over

    @property
    def idle(self) -> bool:
        self._at("idle")
        return self.quiet

    def watermark(self) -> int | None:
        self._at("watermark")
        return self.time

    def snapshot(self, checkpoint: int) -> None:
        self._at("snapshot")
        if self._raises == "capture":
            self._lists.replace([threading.Lock()])

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        raise AssertionError("nothing is completed here")


def task(reader: Reader, sent: list[Message], clock: ManualClock | None = None) -> Task:
    clock = clock or ManualClock(1_000)
    made = opened(GRAPH, SOURCE, SourceOperator(reader), clock, lambda channel, message: sent.append(message))
    made.start()
    return made


def far_ahead() -> tuple[Lead, Watermarks]:
    """Of a source whose windows have heard of another, too."""
    own, other = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
    heard = Watermarks([own, other])
    heard.advance(own, 1_000)
    lead = Lead([Hearing(heard, own, 10)])
    for _ in range(BATCHES):
        lead.polled()
    heard.advance(other, 50)
    return lead, heard


def test_an_idle_source_is_set_aside_until_just_before_its_next_records() -> None:
    sent: list[Message] = []
    reader = Reader()
    source = task(reader, sent)
    source.step()
    assert sent == [], "nothing to read is not idleness"
    reader.quiet = True
    assert not source.step()
    assert not source.step()
    assert sent == [Idle()]
    reader.ready, reader.time = [BATCH], 7
    assert source.step()
    assert sent[1:] == [Watermark(MIN_WATERMARK), Records(BATCH, 2, BATCH.nbytes), Watermark(7)]
    source.step()
    assert sent[4:] == [Idle()]


def test_an_idle_source_is_read_on_however_far_ahead_it_is() -> None:
    """Event time goes on without it: what it has to give would be late by the time that others have come so far."""
    sent: list[Message] = []
    reader = Reader()
    reader.quiet = True
    source = task(reader, sent)
    source.step()
    source.lead, _ = far_ahead()
    assert source.wants_polling, "or its slot would not look again soon"
    reader.ready = [BATCH, BATCH]
    assert source.step()
    assert sent == [Idle(), Watermark(MIN_WATERMARK), Records(BATCH, 2, BATCH.nbytes)]
    assert not source.step(), "now others wait for it, and it for them"
    assert not source.wants_polling


def test_it_is_told_how_long_a_source_has_waited_for_slower_ones_and_not_after_its_end() -> None:
    clock, reader = ManualClock(1_000), Reader()
    source = task(reader, [], clock)
    found = []

    def pass_100_ms() -> None:
        for _ in range(2):
            source.step()
            clock.advance(100)
        source.step()
        found.append(source.metrics().counters)

    pass_100_ms()
    source.lead, heard = far_ahead()
    pass_100_ms()
    heard.idle(ChannelId(0, 1, 0))
    reader.over = True
    source.step()
    heard.advance(ChannelId(0, 1, 0), 60)
    pass_100_ms()
    assert found == [{}, {WAITED: 200}, {WAITED: 200}]


@pytest.mark.parametrize("error", [ValueError("why"), DataRejected("why"), OSError(24, "why")])
@pytest.mark.parametrize("place", ["poll", "watermark", "exhausted", "idle"])
def test_an_error_of_a_source_names_it_wherever_it_was_met(place: str, error: Exception) -> None:
    source = task(Reader(place, error), [])
    with pytest.raises(OperatorFailure, match=f"operator 'a', subtask 0, in {place}: .*why") as failed:
        source.step()
    assert failed.value.__cause__ is error


@pytest.mark.parametrize("place", ["snapshot", "capture"])
def test_an_error_at_a_snapshot_names_the_operator(place: str) -> None:
    """S2-36."""
    source = task(Reader(place, ValueError("why")), [])
    with pytest.raises(OperatorFailure, match="operator 'a', subtask 0, in snapshot: "):
        source.handle(Triggered(BARRIER))


def test_a_source_that_changes_its_columns_is_named() -> None:
    reader = Reader()
    source = task(reader, [])
    what: Any = pa.record_batch({"value": ["text"]})
    reader.ready = [BATCH, what]
    source.step()
    with pytest.raises(OperatorFailure, match=r"operator 'a', subtask 0, in poll: .*'value' was int64 and is string"):
        source.step()
