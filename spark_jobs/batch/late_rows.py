"""Late rows, which STREAMING drops or sends to `late_to`: BATCH refuses them, since it sorts by event time.

Which rows are late in STREAMING depends on the cuts between batches, also with a side output for them. BATCH decides
that a row is never late; then the result has the row in both modes. All other rows are refused.

A task refuses a row that is late by the watermark of its own source subtask or partition. The partitions of a DataFrame
are tasks of their own in BATCH. In STREAMING a subtask reads several of them, one after another, with one watermark. So
each task reports the watermark at the end of its partition, and the lowest watermark at which one of its rows is late.
The driver compares partitions in their order as they end, so later stages stop soon (`execute`). Which partitions share
a subtask depends on the id of the input, and so differs between runs: a row is refused if it may be late.

No watermark passes an exchange between subtasks. Late rows behind a keyed step are kept, and also those behind a
function that gets its rows from other subtasks or from the partitions of a DataFrame.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from runtime.dataflow.plan import CompiledJob, PreAggregation
from runtime.operators.event_time import Times, event_times_ms
from runtime.operators.joins.interval import IntervalJoin
from runtime.operators.joins.window import WindowJoin
from runtime.operators.windows.deduplicate import Deduplicate
from runtime.operators.windows.session import SessionWindow
from runtime.ports import Operator
from spark_jobs.batch.failures import StepRefused
from spark_jobs.sources.table import SparkTable


@dataclass(frozen=True)
class LateRule:
    """When a row is late: once the watermark has reached the end of its last window.

    Args:
        time: column of event times.
        size_ms: length of a window.
        slide_ms: distance between the starts of two consecutive windows.
    """

    time: str
    size_ms: int
    slide_ms: int

    @classmethod
    def of(cls, operator: Operator, pre_aggregation: PreAggregation | None, number: int = 0) -> LateRule | None:
        """The rule of an operator for rows of input `number`; None: no row is late in it."""
        if pre_aggregation is not None:
            return cls(pre_aggregation.time, pre_aggregation.size_ms, pre_aggregation.slide_ms)
        if isinstance(operator, SessionWindow):  # late at `time + gap`, unless other rows hold the session open
            return cls(operator.time, operator.gap_ms + 1, 1)
        if isinstance(operator, WindowJoin):
            return cls(operator.times[number], operator.size_ms, operator.slide_ms)
        if isinstance(operator, IntervalJoin):  # late at `time + 1`: the rows that it would match may be gone
            return cls(operator.times[number], 2, 1)
        if isinstance(operator, Deduplicate):
            return cls(operator.time, operator.within_ms, operator.within_ms)
        return None

    def late_from(self, batch: pa.RecordBatch) -> Times:
        """By row, the lowest watermark at which the row is late."""
        return event_times_ms(batch, self.time) // self.slide_ms * self.slide_ms + self.size_ms - 1


def may_refuse_frame(job: CompiledJob) -> bool:
    """Whether BATCH may refuse late rows of a DataFrame. It finds them only while it runs."""
    if not any(isinstance(source, SparkTable) and source.event_time is not None for source in job.sources.values()):
        return False
    return any(
        LateRule.of(job.operators[edge.spec.target](), edge.pre_aggregation, edge.spec.input) is not None
        for edge in job.edges
        if edge.spec.target not in job.sinks
    )


def late_rows_error(target: str, detail: str) -> StepRefused:
    return StepRefused("late-rows-in-batch", target, detail)
