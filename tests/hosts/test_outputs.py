"""The output side of one subtask: one schema for everything that it emits."""

import pyarrow as pa
import pytest

from runtime.core.ids import ChannelId
from runtime.core.messages import Message, Records
from runtime.errors import WeirError
from runtime.hosts.outputs import Outputs
from tests.core.builders import chain, subtask

FIRST = pa.record_batch({"key": [1], "value": [2]})


def outputs(sent: list[tuple[ChannelId, Message]]) -> Outputs:
    return Outputs(chain(), subtask("b/0"), lambda channel, message: sent.append((channel, message)))


@pytest.mark.parametrize(
    ("batch", "difference"),
    [
        (pa.record_batch({"key": [1], "value": ["2"]}), "'value' was int64 and is string"),
        (pa.record_batch({"key": [1], "worth": [2]}), "'value' is missing; 'worth' is new"),
        (pa.record_batch({"value": [2], "key": [1]}), "their order was key, value and is value, key"),
    ],
)
def test_an_operator_that_changes_its_columns_is_named_with_the_difference(
    batch: pa.RecordBatch, difference: str
) -> None:
    """Also where the receiver is in the same slot, and would have taken it."""
    sent: list[tuple[ChannelId, Message]] = []
    made = outputs(sent)
    made.emit(FIRST)
    with pytest.raises(WeirError, match=f"operator 'b' changed the columns of its output: {difference}"):
        made.emit(batch)
    assert len(sent) == 1


def test_what_is_no_matter_of_the_columns_may_change() -> None:
    """Metadata of whoever made the batch, and whether nulls are possible; an empty batch is not sent at all."""
    sent: list[tuple[ChannelId, Message]] = []
    made = outputs(sent)
    strict = pa.schema([pa.field("key", pa.int64(), nullable=False), ("value", pa.int64())], metadata={"by": "pandas"})
    for batch in (FIRST, FIRST.cast(strict), pa.record_batch({"other": pa.array([], pa.string())})):
        made.emit(batch)
    assert [message.rows for _, message in sent if isinstance(message, Records)] == [1, 1]
