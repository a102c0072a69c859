"""Standing stages prepared for the templates of the job page.

A stage chooses its figures and reports the format of each figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from console import formats
from console.formats import Quantity
from console.jobs.models import Run, StageState, StandingStage
from console.metrics.live import convert_report
from console.ui.status import NOT_STARTED


class FigureLive(msgspec.Struct, frozen=True):
    """A number or a text; None: unknown so far. `kind`: the format, as in `spark_jobs.stages.standing`."""

    label: str
    value: float | str | None = None
    kind: str = "count"


class ReportLive(msgspec.Struct, frozen=True):
    figures: tuple[FigureLive, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """A standing stage. `note` is the cause of its last process's death."""

    operator: str
    state: str
    deaths: int
    note: str
    reported_at: datetime | None
    figures: tuple[tuple[str, Quantity, bool], ...]  #: (label, value, whether it is text)


def stage_views(run: Run | None, stages: Sequence[StandingStage]) -> tuple[StageView, ...]:
    is_over = run is not None and run.is_terminal
    return tuple(_view(stage, is_over=is_over) for stage in stages)


def _view(stage: StandingStage, *, is_over: bool) -> StageView:
    """The stage for a template. Figures remain after the stage's end, except rates. `is_over`: the run has ended."""
    is_running = stage.state == StageState.RUNNING
    report = convert_report(stage.live or {}, ReportLive) or ReportLive()
    figures = [figure for figure in report.figures if is_running or figure.kind != "rate"]
    return StageView(
        operator=stage.operator,
        state=NOT_STARTED if is_over and stage.state == StageState.WAITING else stage.state,
        deaths=stage.deaths,
        note=_note(stage),
        reported_at=stage.live_at,
        figures=tuple((figure.label, _figure_quantity(figure), figure.kind == "text") for figure in figures),
    )


def _note(stage: StandingStage) -> str:
    """The cause of the last death, marked as belonging to the previous process if a new process runs."""
    if not stage.reason or stage.state in (StageState.ENDED, StageState.DONE):
        return ""
    is_over = stage.state in (StageState.RESTARTING, StageState.FAILED)
    return stage.reason if is_over else f"The previous process: {stage.reason}"


def _figure_quantity(figure: FigureLive) -> Quantity:
    value = figure.value
    if isinstance(value, str) or value is None:
        return formats.NO_QUANTITY if value is None else Quantity(value)
    match figure.kind:
        case "rate":
            return formats.rate(value)
        case "ms":
            return formats.duration(value)
        case "bytes":
            return formats.size(int(value))
        case _:
            return Quantity(formats.count(int(value)))
