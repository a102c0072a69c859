"""The watermark of each key group as state of an operator.

Subtasks of an operator may have different watermarks at a barrier. A subtask that restores the state of several starts
from the lowest. Which rows are late must not depend on that: so each key group keeps the watermark of its former owner.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.core.job.messages import MIN_WATERMARK
from runtime.operators.event_time import Times
from runtime.ports import OperatorContext
from runtime.state.index.hashing import key_groups
from runtime.state.object_table import ObjectTable

_encode: Final = msgspec.msgpack.encode


class GroupWatermarks:
    """The watermarks of the key groups of an operator subtask.

    Args:
        table: the state, an entry per key group.
        name: key of the entries.
    """

    def __init__(self, context: OperatorContext, table: ObjectTable, name: bytes) -> None:
        self._context = context
        self._table = table
        self._name = name
        self._restored = np.full(context.max_parallelism, MIN_WATERMARK)  #: restored watermark by key group
        self.restored_names: set[bytes] = set()  #: keys of the restored entries
        for (group, key, _), at in table.items():
            assert isinstance(at, bytes), "watermarks are stored as bytes"
            self.restored_names.add(key)
            self._restored[group] = msgspec.msgpack.decode(at)
        self.min_watermark = int(self._restored[list(context.key_groups)].min())  #: lowest of own groups
        self.max_watermark = int(self._restored.max())  #: highest of all restored groups

    def restored_watermarks(self, rows: pa.RecordBatch, keys: Sequence[str]) -> Times:
        """By row, the restored watermark of the row's key group; `keys`: the key columns."""
        return self._restored[key_groups(rows, keys, self._context.max_parallelism)]

    def of_groups(self, groups: npt.NDArray[np.int32]) -> Times:
        """The restored watermarks of key groups."""
        return self._restored[groups]

    def store(self, time: int) -> None:
        """Puts watermark `time` into the state, before a snapshot."""
        for group in self._context.key_groups:
            at = _encode(max(time, int(self._restored[group])))
            if self._table.entries_of(group, self._name).get(None) != at:
                self._table.put((group, self._name, None), at)
