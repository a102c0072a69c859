"""The explanation of a checkpoint from its row and the load of its run at that time, for pages and REST."""

from collections.abc import Sequence
from datetime import datetime

from console.checkpoints.explanation import Circumstances, explain
from console.checkpoints.lanes import Lane
from console.checkpoints.models import Checkpoint
from console.metrics.selectors import mean_load


def explanation_of(found: Checkpoint, lanes: Sequence[Lane], now: datetime) -> str:
    """The explanation of `found`, with `lanes` in the order of the graph; "" without lanes. Two queries."""
    end = found.completed_at or now
    return explain(
        Circumstances(
            outcome=found.outcome,
            reason=found.reason,
            detail=found.detail,
            took_ms=found.took_ms(now),
            lanes=lanes,
            graph=found.run.version.graph or {},
            load=mean_load(found.run, found.triggered_at, max(end, found.triggered_at), now) if lanes else {},
        )
    )
