"""Printed rows, as a reader of a terminal sees them."""

import pyarrow as pa
import pytest

from runtime.connectors.sinks.print import PrintSink
from runtime.core.job.ids import Token
from runtime.ports import OperatorContext
from runtime.state.backend import SubtaskState


@pytest.mark.parametrize(
    ("sink", "parallelism", "text"),
    [
        (PrintSink(), 1, '{"n":1}\n{"n":null}\n'),
        (PrintSink("a: "), 3, 'a: 2> {"n":1}\na: 2> {"n":null}\n'),
        (PrintSink(to_stderr=True), 1, '{"n":1}\n{"n":null}\n'),
    ],
)
def test_a_line_is_a_row_after_prefix_and_subtask(
    sink: PrintSink, parallelism: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = sink.writer()
    writer.open(
        OperatorContext(
            job="job", uid="out", index=1, parallelism=parallelism, max_parallelism=16, token=Token(1),
            state=SubtaskState(range(4), 16, None), now_ms=lambda: 0,
        )
    )  # fmt: skip
    writer.write(pa.RecordBatch.from_pydict({"n": pa.array([1, None], pa.int64())}))
    assert writer.prepare(1) == ()
    output = capsys.readouterr()
    assert (output.err if sink.to_stderr else output.out) == text


def test_a_time_after_the_year_9999_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    writer = PrintSink().writer()
    writer.open(
        OperatorContext(
            job="job", uid="out", index=0, parallelism=1, max_parallelism=16, token=Token(1),
            state=SubtaskState(range(16), 16, None), now_ms=lambda: 0,
        )
    )  # fmt: skip
    writer.write(pa.record_batch({"at": pa.array([253_402_300_800_000], pa.timestamp("ms"))}))
    assert capsys.readouterr().out == '{"at":"10000-01-01T00:00:00.000"}\n'
