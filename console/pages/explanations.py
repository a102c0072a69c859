"""The explanation of a checkpoint from its row and the load of its run at that time, for pages and REST."""

from collections.abc import Sequence
from datetime import datetime

from console.checkpoints.explanation import Circumstances, explain
from console.checkpoints.lanes import Lane
from console.checkpoints.models import Checkpoint
from console.metrics.selectors import mean_load


def explanation_of(checkpoint: Checkpoint, lanes: Sequence[Lane], now: datetime) -> str:
    """The explanation of `checkpoint`, with `lanes` in the order of the graph; "" without lanes. Two queries."""
    end = checkpoint.completed_at or now
    return explain(
        Circumstances(
            outcome=checkpoint.outcome,
            reason=checkpoint.reason,
            detail=checkpoint.detail,
            took_ms=checkpoint.took_ms(now),
            lanes=lanes,
            graph=checkpoint.run.version.graph or {},
            load=mean_load(checkpoint.run, checkpoint.triggered_at, max(end, checkpoint.triggered_at), now)
            if lanes
            else {},
        )
    )
