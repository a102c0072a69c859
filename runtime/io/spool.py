"""Message queue that keeps a few megabytes in memory and the rest on disk.

A loop's feedback must not block, so its queue is unbounded. Batches beyond the memory limit are Arrow IPC streams in
unlinked files, which disappear with the process. A file is closed once all its batches have been read. A single thread
pushes and pops; another thread may read `batches`.
"""

import os
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from runtime.core.job.messages import Message, Records

MAX_MEMORY_BYTES: Final = 16 * 1024 * 1024
MAX_FILE_BYTES: Final = 64 * 1024 * 1024


class _File:
    """A temporary file with several batches, back to back."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="weir-")  # noqa: SIM115  (closed after its last batch)
        self.size = 0
        self.unread = 0

    def append(self, data: pa.Buffer) -> int:
        offset = self.size
        self._file.write(data)
        self._file.flush()
        self.size += data.size
        self.unread += 1
        return offset

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._file.fileno(), length, offset)

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class _SpilledBatch:
    file: _File
    offset: int
    length: int
    rows: int
    nbytes: int

    def load(self) -> Records:
        with pa.ipc.open_stream(self.file.read(self.offset, self.length)) as stream:
            return Records(stream.read_next_batch(), self.rows, self.nbytes)


class Spool:
    """First in, first out; has the methods of a deque that a queue needs.

    Args:
        memory_bytes: total size of the records in memory; beyond it records go to disk.
        file_bytes: a file of this size takes no more batches.
    """

    def __init__(self, memory_bytes: int = MAX_MEMORY_BYTES, file_bytes: int = MAX_FILE_BYTES) -> None:
        self._max_memory_bytes, self._max_file_bytes = memory_bytes, file_bytes
        self._memory_bytes = 0
        self._items: deque[Message | _SpilledBatch] = deque()
        self._files: list[_File] = []

    def __len__(self) -> int:
        return len(self._items)

    def append(self, message: Message) -> None:
        if isinstance(message, Records) and self._memory_bytes >= self._max_memory_bytes:
            self._items.append(self._spill(message))
            return
        self._memory_bytes += _record_bytes(message)
        self._items.append(message)

    def __getitem__(self, index: Literal[0]) -> Message:
        """The next message. Raises IndexError if there is none."""
        first = self._items[index]
        if isinstance(first, _SpilledBatch):
            first = self._items[index] = self._load(first)
        return first

    def popleft(self) -> Message:
        message = self[0]
        self._items.popleft()
        self._memory_bytes -= _record_bytes(message)
        return message

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The batches that are queued now, without later pushes. Do not pop or close meanwhile."""
        return _batches(tuple(self._items))

    def close(self) -> None:
        self._items.clear()
        for file in self._files:
            file.close()
        self._files.clear()

    def _spill(self, records: Records) -> _SpilledBatch:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, records.payload.schema) as writer:
            writer.write_batch(records.payload)
        data = sink.getvalue()
        if not self._files or self._files[-1].size >= self._max_file_bytes:
            self._files.append(_File())
        file = self._files[-1]
        return _SpilledBatch(file, file.append(data), data.size, records.rows, records.nbytes)

    def _load(self, item: _SpilledBatch) -> Records:
        records = item.load()
        self._memory_bytes += records.nbytes
        item.file.unread -= 1
        if item.file.unread == 0:
            self._files.remove(item.file)
            item.file.close()
        return records


def _record_bytes(message: Message) -> int:
    return message.nbytes if isinstance(message, Records) else 0


def _batches(items: tuple[Message | _SpilledBatch, ...]) -> Iterator[pa.RecordBatch]:
    for item in items:
        records = item.load() if isinstance(item, _SpilledBatch) else item
        if isinstance(records, Records):  # pragma: no branch  (a log holds records only)
            yield records.payload
