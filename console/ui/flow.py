"""The flow of records of a job as a whole: read by its sources, written by its sinks, and its watermark."""

from dataclasses import dataclass
from datetime import UTC, datetime

from console import formats
from console.formats import Quantity
from console.jobs.models import Run
from console.metrics.live import Live
from runtime.core.job.lifecycle import RunState


@dataclass(frozen=True, slots=True)
class Flow:
    """Rates per second. `watermark` is the lowest of any operator, at the time of the report."""

    rate_in: float
    rate_out: float
    watermark: Quantity | None


def flow_of(run: Run | None, numbers: Live, *, is_silent: bool) -> Flow | None:
    """The flow by the last report; None without a recent one, since an old rate is no rate."""
    if run is None or is_silent or not numbers.operators or not numbers.flowing:
        return None
    operators = (run.version.graph or {}).get("operators", [])
    sources = [o["uid"] for o in operators if o["role"] == "source"]
    sinks = [o["uid"] for o in operators if o["role"] == "sink" or o["commits"]]
    return Flow(
        rate_in=sum(numbers.operators[uid].rate_out for uid in sources if uid in numbers.operators),
        rate_out=sum(numbers.operators[uid].rate_in for uid in sinks if uid in numbers.operators),
        watermark=_watermark(numbers),
    )


def behind_since(run: Run | None, numbers: Live, now: datetime) -> datetime | None:
    """The event time at which a failed run stands, if its data is live: until a restore it falls behind the clock."""
    lowest = _lowest_watermark(numbers)
    if run is None or run.run_state is not RunState.FAILED or lowest is None:
        return None
    is_live = 0 < now.timestamp() * 1000 - lowest < formats.MAX_LIVE_LAG_MS
    return datetime.fromtimestamp(lowest / 1000, UTC) if is_live else None


def _watermark(numbers: Live) -> Quantity | None:
    lowest = _lowest_watermark(numbers)
    return formats.watermark(lowest, numbers.at) if lowest is not None and numbers.at else None


def _lowest_watermark(numbers: Live) -> int | None:
    watermarks = [o.watermark for o in numbers.operators.values() if o.watermark is not None and not o.finished]
    return min(watermarks, default=None)
