"""The flow of records of a job as a whole: read by its sources, written by its sinks, and its watermark."""

from dataclasses import dataclass

from console import formats
from console.formats import Quantity
from console.jobs.models import Run
from console.metrics.live import Live


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
    sinks = [o["uid"] for o in operators if o["role"] == "sink" or o.get("commits")]
    return Flow(
        rate_in=sum(numbers.operators[uid].rate_out for uid in sources if uid in numbers.operators),
        rate_out=sum(numbers.operators[uid].rate_in for uid in sinks if uid in numbers.operators),
        watermark=_watermark(numbers),
    )


def _watermark(numbers: Live) -> Quantity | None:
    known = [o.watermark for o in numbers.operators.values() if o.watermark is not None and not o.finished]
    return formats.watermark(min(known), numbers.at) if known and numbers.at else None
