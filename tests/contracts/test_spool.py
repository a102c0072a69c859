"""A queue that may be larger than memory."""

from random import Random

import pyarrow as pa
import pytest

from runtime.core.job.messages import EndOfData, Message, Records, Watermark
from runtime.io.spool import Spool


def records(start: int, rows: int = 10) -> Records:
    batch = pa.record_batch({"n": pa.array(range(start, start + rows), pa.int64())})
    return Records(batch, batch.num_rows, batch.nbytes)


def told(message: Message) -> object:
    return message.payload.to_pylist() if isinstance(message, Records) else message


def on_disk_bytes(queue: Spool) -> int:
    return sum(file.size for file in queue._files)


def test_what_is_beyond_the_limit_lies_on_disk_and_comes_back_in_order() -> None:
    """S4-48: batches and control messages of a blocked queue, whatever of it is in memory."""
    queue = Spool(memory_bytes=200)
    sent: list[Message] = [records(n) if n % 5 else Watermark(n) for n in range(40)]
    for message in sent:
        queue.append(message)
    assert len(queue) == 40
    assert on_disk_bytes(queue) > 0
    assert [told(queue.popleft()) for _ in sent] == [told(message) for message in sent]
    assert (len(queue), on_disk_bytes(queue)) == (0, 0), "the file is gone with its last batch"


def test_a_small_queue_never_touches_the_disk() -> None:
    queue = Spool()
    queue.append(records(1))
    queue.append(EndOfData(drain=True))
    assert on_disk_bytes(queue) == 0
    assert told(queue[0]) == told(queue.popleft())
    assert queue.popleft() == EndOfData(drain=True)
    with pytest.raises(IndexError):
        queue[0]


def test_files_go_one_by_one_as_they_are_read() -> None:
    """A queue that is never empty does not grow for ever."""
    queue, largest = Spool(memory_bytes=0, file_bytes=2_000), 0
    for n in range(300):
        queue.append(records(n))
        largest = max(largest, on_disk_bytes(queue))
        if n >= 5:
            assert told(queue.popleft()) == told(records(n - 5))
    assert 0 < largest < 12_000
    queue.close()
    assert on_disk_bytes(queue) == 0


def test_any_interleaving_keeps_the_order() -> None:
    for seed in range(20):
        rng, queue = Random(seed), Spool(memory_bytes=300)
        pushed = popped = 0
        while popped < 200:
            if pushed < 200 and rng.random() < 0.6:
                queue.append(records(pushed))
                pushed += 1
            elif len(queue):
                assert told(queue.popleft()) == told(records(popped))
                popped += 1


def test_its_batches_may_be_read_while_more_is_pushed() -> None:
    queue = Spool(memory_bytes=100)
    for n in range(10):
        queue.append(records(n))
    batches = queue.batches()
    queue.append(records(10))
    assert [batch.to_pylist() for batch in batches] == [told(records(n)) for n in range(10)]
    assert len(queue) == 11
    queue.close()
