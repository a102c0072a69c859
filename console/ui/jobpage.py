"""The page of a job, prepared for its templates: rows from the selectors, drawings from the live metrics.

It reads no rows itself except checkpoints and the parameter schema.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from console.checkpoints.models import Checkpoint, Status
from console.jobs.guarantees import promise_of
from console.jobs.models import JobVersion, Pipeline, Run, VersionState
from console.operations import selectors
from console.operations.models import Operation, OperationKind
from console.operations.selectors import JobPage
from console.ui import actions, live
from console.ui.attention import Attention, warnings
from console.ui.graph.picture import GraphPicture, draw
from console.ui.live import BatchLive, Live
from console.ui.paging import Paged, by_number
from console.ui.remedies import Suggestion, suggestion_for
from console.ui.schema_fields import written
from console.ui.stages import StageView, stage_views
from console.ui.strip import DRAWN, Strip, strip
from runtime.core.job.guarantee import Promise
from runtime.core.job.lifecycle import RunState
from runtime.core.restore.mapping import Target
from runtime.redaction import Schema, masked, redacted_within

STRIP_COLUMNS = 96
TABLE_ROWS = 10
FLOWING = (RunState.RUNNING, RunState.STOPPING, RunState.DRAINING)
#: State label of an unfinished operator while its run is in this state.
_AT_REST = {
    RunState.WAITING: "waiting for slots",
    RunState.RESTARTING: "restarting",
    RunState.STOPPED: "stopped",
    RunState.CANCELED: "canceled",
    RunState.FAILED: "ended",
}
_WANTED_BY = {OperationKind.STOP: "stopped", OperationKind.DRAIN: "finished", OperationKind.CANCEL: "canceled"}


_SAID = ("code", "message", "detail", "operator", "story")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The recorded failure of a run: with operator and events from the job master, with a detail from other writers."""

    code: str
    message: str
    operator: str
    story: tuple[str, ...]
    detail: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    page: JobPage
    run: Run | None
    live: Live
    picture: GraphPicture | None
    strip: Strip | None
    checkpoints: Paged[Checkpoint]
    buttons: tuple[actions.Button, ...]
    reasons: tuple[tuple[str, str], ...]
    wanted: str
    failure: Failure | None
    suggestion: Suggestion | None  #: remedy of a failure
    warnings: tuple[Attention, ...]
    stages: tuple[StageView, ...]  #: standing stages
    params: tuple[tuple[str, str], ...]  #: (form label, value) of the version
    promise: Promise | None  #: end-to-end guarantee; None while unknown
    settled: bool

    @property
    def shows_spark_ui(self) -> bool:
        """Whether the run's Spark UI is up: its context ends with the attempt."""
        return self.run is not None and self.run.run_state in FLOWING

    @property
    def has_checkpoints(self) -> bool:
        """Whether the page shows checkpoints: a run in BATCH takes none, but an earlier version may have taken some."""
        is_batch = self.page.version is not None and self.page.version.is_batch
        return bool(self.checkpoints.rows) or not self.checkpoints.first or not is_batch


def job_view(page: JobPage, now: datetime, before: int | None) -> JobView:
    run, table = page.run, selectors.checkpoint_table(page.job)
    graph = graph_of(page.version, run)
    columns = list(table.only(*DRAWN)[:STRIP_COLUMNS])
    numbers = _without_settled(_at_rest(numbers_of(run), run), columns)
    shown = by_number(table, before, TABLE_ROWS)
    show_progress(numbers, shown.rows)
    newest, schema = selectors.continuable(page.job).first(), _schema(page.job.pipeline)
    failure = failure_of(run, schema)
    suggestion = suggestion_for(run, failure.code, newest, page.newest_version) if run and failure else None
    return JobView(
        page=page,
        run=run,
        live=numbers,
        picture=draw(graph, numbers, now) if graph else None,
        strip=strip(columns),
        checkpoints=shown,
        buttons=actions.buttons(
            page.job.pk, page.acts, start_repeats=page.start_repeats, suggested=_suggested(page, newest, suggestion)
        ),
        reasons=actions.reasons(page.acts),
        wanted=wanted(run, page.active),
        failure=failure,
        suggestion=suggestion,
        warnings=warnings(run, now),
        stages=stage_views(run, page.stages),
        params=_params(page.version, schema),
        promise=promise_of(page.version) if page.version else None,
        settled=_settled(page),
    )


def numbers_of(run: Run | None) -> Live:
    """The live metrics; totals without rates while no records flow.

    A run in BATCH reports totals only, of its finished tasks.
    """
    if run is None:
        return live.NOTHING_LIVE
    found = live.parse(run.live, run.live_at)
    if run.run_state in FLOWING and not run.version.is_batch:
        return found
    slots = () if run.is_terminal else found.slots
    return msgspec.structs.replace(found, flowing=False, checkpoint=None, slots=slots)


def _at_rest(numbers: Live, run: Run | None) -> Live:
    """The metrics with unfinished operators in the state of their run, while no records flow.

    The subtasks of a stop end like those of a drain, so the savepoint decides which operators were finished.
    """
    if run is None or (word := _AT_REST.get(run.run_state)) is None:
        return numbers
    finished = {uid for uid, operator in numbers.operators.items() if operator.finished}
    if run.run_state is RunState.STOPPED:
        savepoint = selectors.reached(run).newest
        finished = set(savepoint.finished_operators) if savepoint else set()
    operators = {
        uid: operator if uid in finished else msgspec.structs.replace(operator, state=word)
        for uid, operator in numbers.operators.items()
    }
    return msgspec.structs.replace(numbers, operators=operators, batch=_stages_at_rest(numbers.batch, word))


def _stages_at_rest(batch: BatchLive | None, word: str) -> BatchLive | None:
    """The stages with `word` as the state of formerly active stages."""
    if batch is None:
        return None
    words = {"active": word, "pending": "not started"}
    stages = tuple(msgspec.structs.replace(s, state=words.get(s.state, s.state)) for s in batch.stages)
    return msgspec.structs.replace(batch, stages=stages)


def graph_of(version: JobVersion | None, run: Run | None) -> Mapping[str, Any] | None:
    """The graph at the parallelism of the run; it was compiled for the version's parallelism."""
    if version is None:
        return None
    if run is None or not version.graph:
        return version.graph
    scaled = msgspec.convert(version.graph, Target).at(run.parallelism, compiled_for=version.parallelism)
    counts = {operator.uid: operator.parallelism for operator in scaled.operators}
    operators = [{**operator, "parallelism": counts[operator["uid"]]} for operator in version.graph["operators"]]
    return {**version.graph, "operators": operators}


def _without_settled(numbers: Live, newest: Sequence[Checkpoint]) -> Live:
    """Drop the checkpoint in progress if its row shows that it has ended: live metrics are up to a second old."""
    ended = {row.number for row in newest if row.status != Status.IN_PROGRESS}
    if numbers.checkpoint is None or numbers.checkpoint.number not in ended:
        return numbers
    return msgspec.structs.replace(numbers, checkpoint=None)


def show_progress(numbers: Live, rows: Sequence[Checkpoint]) -> None:
    """Copy the live acknowledgements of the checkpoint in progress to its row, so that graph and tables agree."""
    under_way = numbers.checkpoint
    for row in rows:
        if under_way and row.status == Status.IN_PROGRESS and row.number == under_way.number:
            row.acknowledged, row.subtasks = under_way.acknowledged, under_way.subtasks


def _suggested(page: JobPage, newest: Checkpoint | None, suggestion: Suggestion | None) -> OperationKind | None:
    """The operation to highlight: the remedy of a failure, else a restore if the job can continue, else a start.

    None if a start would repeat output. A finished job and a run in BATCH do not continue.
    """
    run = page.run
    if suggestion is not None:
        act = suggestion.act
    else:
        goes_on = run is not None and run.run_state is not RunState.FINISHED and not run.version.is_batch
        act = OperationKind.RESTORE if newest is not None and goes_on else OperationKind.START
    return None if act is OperationKind.START and page.start_repeats else act


def _schema(pipeline: str) -> Schema:
    found = Pipeline.objects.filter(pk=pipeline).first()
    return found.schema if found else {}


def _params(version: JobVersion | None, schema: Schema) -> tuple[tuple[str, str], ...]:
    return written(schema, masked(version.params, schema)) if version else ()


def wanted(run: Run | None, active: tuple[Operation, ...]) -> str:
    """The requested state if it differs from the actual state, else ''."""
    if run is None or run.is_terminal:
        return ""
    for operation in active:
        if goal := _WANTED_BY.get(OperationKind(operation.kind)):
            return goal
    return "" if run.run_state is RunState.RUNNING else _goal_of(run.run_state)


def _goal_of(state: RunState) -> str:
    goals = {RunState.STOPPING: "stopped", RunState.DRAINING: "finished", RunState.CANCELLING: "canceled"}
    return goals.get(state, "running")


def failure_of(run: Run | None, schema: Schema) -> Failure | None:
    """The failure of the run, without the secrets of its version."""
    if run is None or run.state != RunState.FAILED:
        return None
    recorded = redacted_within(run.failure or {}, run.version.params, schema)
    detail = recorded.get("detail")
    known = {**recorded, **detail} if isinstance(detail, dict) else recorded
    story = known.get("story") or ()
    rest = {key: value for key, value in known.items() if key not in _SAID and value not in (None, "", [])}
    return Failure(
        code=str(recorded.get("code", "unknown")),
        message=str(recorded.get("message", "No reason was recorded.")),
        operator=str(known.get("operator", "")),
        story=tuple(str(line) for line in story) if isinstance(story, list | tuple) else (str(story),),
        detail=rest or (None if isinstance(detail, dict) else detail),
    )


def _settled(page: JobPage) -> bool:
    """Whether the page can change only by a user's request: no live run, active operation or compilation."""
    busy = page.run is not None and not page.run.is_terminal
    compiling = page.newest_version is not None and page.newest_version.state == VersionState.COMPILING
    return not (busy or compiling or page.active)
