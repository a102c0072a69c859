"""Standing stages as the job page shows them: rows and reports made ready for templates.

A stage reports figures with the way in which each is written; it decides which ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog

from console.jobs.models import Run, StageState, StandingStage
from console.ui import formats
from console.ui.formats import Quantity
from console.ui.status import NOT_STARTED

log = structlog.get_logger(__name__)


class FigureLive(msgspec.Struct, frozen=True):
    """A number or a text; None: not known yet. `kind`: as `spark_jobs.standing` writes it."""

    label: str
    value: float | str | None = None
    kind: str = "count"


class ReportLive(msgspec.Struct, frozen=True):
    """The newest report of a stage."""

    figures: tuple[FigureLive, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """A standing stage. `note` says why its last process died."""

    operator: str
    state: str
    deaths: int
    note: str
    reported_at: datetime | None
    figures: tuple[tuple[str, Quantity, bool], ...]  #: each with whether it is words


def stage_views(run: Run | None, stages: Sequence[StandingStage]) -> tuple[StageView, ...]:
    is_over = run is not None and run.is_terminal
    return tuple(_view(stage, is_over=is_over) for stage in stages)


def _view(stage: StandingStage, *, is_over: bool) -> StageView:
    """The figures stay when it has ended; but nothing flows any more. `is_over`: its run has ended."""
    is_running = stage.state == StageState.RUNNING
    shown = [one for one in _report(stage).figures if is_running or one.kind != "rate"]
    return StageView(
        operator=stage.operator,
        state=NOT_STARTED if is_over and stage.state == StageState.WAITING else stage.state,
        deaths=stage.deaths,
        note=_note(stage),
        reported_at=stage.live_at,
        figures=tuple((one.label, _written(one), one.kind == "text") for one in shown),
    )


def _note(stage: StandingStage) -> str:
    """Why its process died; it says so where another one is there again."""
    if not stage.reason or stage.state in (StageState.ENDED, StageState.DONE):
        return ""
    is_over = stage.state in (StageState.RESTARTING, StageState.FAILED)
    return stage.reason if is_over else f"The process before: {stage.reason}"


def _report(stage: StandingStage) -> ReportLive:
    """None of it when it has another shape: a page must not fail over a figure."""
    try:
        return msgspec.convert(stage.live or {}, ReportLive, strict=False)
    except msgspec.ValidationError as error:
        log.warning("report of a standing stage unreadable", error=str(error))
        return ReportLive()


def _written(figure: FigureLive) -> Quantity:
    value = figure.value
    if isinstance(value, str) or value is None:
        return formats.MISSING if value is None else Quantity(value)
    match figure.kind:
        case "rate":
            return formats.rate(value)
        case "ms":
            return formats.duration(value)
        case "bytes":
            return formats.size(int(value))
        case _:
            return Quantity(formats.count(int(value)))
