"""The page of a job, prepared for its templates: rows from `live.job_rows`, drawings from the live metrics."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from console.accounts.rights import AnyUser
from console.checkpoints.models import Checkpoint, Status
from console.checkpoints.selectors import checkpoint_table, newest_of
from console.jobs.failures import NO_REASON, FailureDetail, failure_detail
from console.jobs.models import Job, JobVersion, Run, VersionState
from console.metrics.live import BatchLive, Live, live_metrics
from console.operations.legality import allowed_operations
from console.operations.models import Operation, OperationKind
from console.operations.registry import operation_type, operation_types
from console.operations.restores.effects import restore_target
from console.pages.run_ends import end_of_run, ending_of
from console.pages.selectors import JobPage
from console.ui import actions
from console.ui.flow import Flow, behind_since, flow_of
from console.ui.forms.schema_fields import describe_params
from console.ui.graph.compact import MIN_OPERATORS, NARROW_ROOM
from console.ui.graph.picture import GraphPicture, draw
from console.ui.job_health import HealthView, job_health, silent_since
from console.ui.last_restart import LastRestart, last_restart
from console.ui.live.job_rows import JobRows
from console.ui.paging import TablePage, by_number, first_page
from console.ui.plots.window import Chosen, checkpoints_of
from console.ui.remedies import Suggestion, suggest_remedy
from console.ui.restart_ahead import STATES_BETWEEN_ATTEMPTS, RestartAhead, restart_ahead
from console.ui.stages import StageView, stage_views
from console.ui.strip import Strip
from runtime.access.redaction import Schema, mask
from runtime.core.job.guarantee import EndToEndGuarantee
from runtime.core.job.lifecycle import FLOWING_STATES, RunState

TABLE_ROWS = 10
MAX_NARROW_WIDTH = 440.0  #: of a graph on a narrow page, where it shrinks to 80 %
#: State label of an unfinished operator while its run is in this state.
_STATE_LABELS_AT_REST = {
    RunState.WAITING: "waiting for slots",
    RunState.RESTARTING: "restarting",
    RunState.STOPPED: "stopped",
    RunState.CANCELED: "canceled",
    RunState.FAILED: "ended",
}
#: Desired state of a run by its own state.
_DESIRED_STATES: Mapping[RunState, str] = {
    RunState.STOPPING: "stopped",
    RunState.DRAINING: "finished",
    RunState.CANCELLING: "canceled",
    RunState.RUNNING: "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    page: JobPage
    run: Run | None
    live: Live
    picture: GraphPicture | None
    narrow: GraphPicture | None  #: in place of `picture` on a narrow page, if it has room there
    is_large: bool  #: the graph has a compact form
    strip: Strip | None
    checkpoints: TablePage[Checkpoint]
    newest_restorable: Checkpoint | None  #: of the strip, without its figures by operator
    acts: actions.JobActs
    flow: Flow | None
    behind_since: datetime | None  #: event time at which a failed run stands, if its data is live
    silent_since: datetime | None  #: last report of a job master that is silent
    since: datetime | None  #: begin of the state of the run
    wanted: str
    end: str  #: why the run ended, in a sentence; "" while it runs, and for a failed run
    failure: FailureDetail | None
    suggestion: Suggestion | None  #: remedy of a failure
    health: HealthView | None
    last_restart: LastRestart | None  #: while it is recent
    restart_ahead: RestartAhead | None  #: while it is under way
    stages: tuple[StageView, ...]  #: standing stages
    params: tuple[tuple[str, str], ...]  #: (form label, value) of the version
    promise: EndToEndGuarantee | None  #: end-to-end guarantee; None while unknown
    settled: bool

    @property
    def shows_spark_ui(self) -> bool:
        """Whether the run's Spark UI is up: its context ends with the attempt."""
        return self.run is not None and self.run.run_state in FLOWING_STATES

    @property
    def has_checkpoints(self) -> bool:
        """Whether the page shows checkpoints: a run in BATCH takes none, but an earlier version may have taken some."""
        is_batch = self.page.version is not None and self.page.version.is_batch
        has_any = bool(self.checkpoints.rows) or not self.checkpoints.first
        return has_any or (self.run is not None and not is_batch)


def job_view(
    rows: JobRows,
    user: AnyUser,
    now: datetime,
    before: int | None = None,
    interval: Chosen | None = None,
    *,
    is_detailed: bool = False,
) -> JobView:
    """The page for `user`; its table has the checkpoints before the number `before`, triggered within `interval`.

    A large graph is drawn compactly, unless it is asked for in detail.
    """
    page, newest = rows.page, rows.newest
    run = page.run
    graph = scaled_graph(page.version, run)
    is_large = graph is not None and len(graph["operators"]) >= MIN_OPERATORS and not graph.get("mode")
    numbers = _drop_ended_checkpoint(_with_run_state(live_metrics(run), run), rows.columns)
    is_top = before is None and interval is None  #: the table begins with the checkpoints of the strip
    if is_top:
        table = first_page([copy(row) for row in rows.columns[: TABLE_ROWS + 1]], TABLE_ROWS)
    else:
        table = by_number(checkpoints_of(checkpoint_table(page.job), interval), before, TABLE_ROWS)
    show_progress(numbers, table.rows)
    schema = page.schema
    failure = run_failure(run, schema)
    health = job_health(page.job, run, page.restarts_ms, now)
    findings, skew = (health.verdict.findings, health.skew) if health else ((), {})
    is_compact, silent = is_large and not is_detailed, silent_since(run, now)
    suggestion = suggest_remedy(run, failure.code, newest, page.newest_version) if run and failure else None
    next_attempt_at = health.next_attempt_at if health else None
    drawn = partial(draw, graph, numbers, now, findings=findings, skew=skew) if graph else None
    narrow = None
    if drawn and graph and not (is_large or is_detailed or graph.get("mode")):
        narrow = drawn(is_compact=True, room=NARROW_ROOM)
    return JobView(
        page=page,
        run=run,
        live=numbers,
        picture=drawn(is_compact=is_compact) if drawn else None,
        narrow=narrow if narrow and narrow.width <= MAX_NARROW_WIDTH else None,
        is_large=is_large,
        strip=rows.strip,
        checkpoints=table,
        newest_restorable=rows.restorable,
        acts=actions.job_acts(
            page.job.pk,
            allowed_operations(page.job, run, user, page.active),
            start_repeats=page.start_repeats,
            suggested=_primary_operation(page, newest, suggestion),
        ),
        wanted=desired_state(page.job, run, failure.code if failure else None, page.active),
        end="" if run is None or failure else end_of_run(run, ending_of(run, page.operations), schema),
        failure=failure,
        suggestion=suggestion,
        health=health,
        last_restart=last_restart(run, page.attempts, health.verdict, now) if health else None,
        restart_ahead=restart_ahead(run, page.attempts, rows.columns, numbers, page.restarts_ms, next_attempt_at, now),
        flow=flow_of(run, numbers, is_silent=silent is not None),
        behind_since=behind_since(run, numbers, now),
        silent_since=silent,
        since=state_since(run, next((row.ended_at for row in page.attempts if row.ended_at), None), page.active),
        stages=stage_views(run, page.stages),
        params=_params(page.version, schema),
        promise=page.version.guarantee if page.version else None,
        settled=_is_settled(page),
    )


def _with_run_state(numbers: Live, run: Run | None) -> Live:
    """The metrics in which unfinished operators have the state of their run, while no records flow.

    A stop ends subtasks in the same way as a drain, so the savepoint shows which operators were finished.
    """
    if run is None or (word := _STATE_LABELS_AT_REST.get(run.run_state)) is None:
        return numbers
    finished = {uid for uid, operator in numbers.operators.items() if operator.finished}
    if run.run_state is RunState.STOPPED:
        savepoint = newest_of(run)
        finished = set(savepoint.finished_operators) if savepoint else set()
    operators = {
        uid: operator if uid in finished else msgspec.structs.replace(operator, state=word)
        for uid, operator in numbers.operators.items()
    }
    return msgspec.structs.replace(numbers, operators=operators, batch=_stages_at_rest(numbers.batch, word))


def _stages_at_rest(batch: BatchLive | None, word: str) -> BatchLive | None:
    """The stages with `word` as the state of active stages, and "not started" as that of pending stages."""
    if batch is None:
        return None
    words = {"active": word, "pending": "not started"}
    stages = tuple(msgspec.structs.replace(s, state=words.get(s.state, s.state)) for s in batch.stages)
    return msgspec.structs.replace(batch, stages=stages)


def scaled_graph(version: JobVersion | None, run: Run | None) -> Mapping[str, Any] | None:
    """The graph at the parallelism of the run; it was compiled for the version's parallelism."""
    if version is None:
        return None
    if run is None or not version.graph:
        return version.graph
    counts = {operator.uid: operator.parallelism for operator in restore_target(version, run.parallelism).operators}
    operators = [{**operator, "parallelism": counts[operator["uid"]]} for operator in version.graph["operators"]]
    return {**version.graph, "operators": operators}


def _drop_ended_checkpoint(numbers: Live, newest: Sequence[Checkpoint]) -> Live:
    """Drops the checkpoint in progress if its row shows that it has ended: live metrics are up to a second old."""
    ended = {row.number for row in newest if row.status != Status.IN_PROGRESS}
    if numbers.checkpoint is None or numbers.checkpoint.number not in ended:
        return numbers
    return msgspec.structs.replace(numbers, checkpoint=None)


def show_progress(numbers: Live, rows: Sequence[Checkpoint]) -> None:
    """Copies the live acknowledgements of the checkpoint in progress to its row, so that graph and tables agree."""
    under_way = numbers.checkpoint
    for row in rows:
        if under_way and row.status == Status.IN_PROGRESS and row.number == under_way.number:
            row.acknowledged, row.subtasks = under_way.acknowledged, under_way.subtasks


def _primary_operation(page: JobPage, newest: Checkpoint | None, suggestion: Suggestion | None) -> OperationKind | None:
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


def _params(version: JobVersion | None, schema: Schema) -> tuple[tuple[str, str], ...]:
    if version is None:
        return ()
    schema = version.parameter_schema(schema)
    return describe_params(schema, mask(version.params, schema))


def desired_state(job: Job, run: Run | None, failure_code: str | None, active: tuple[Operation, ...]) -> str:
    """The requested state if it differs from the actual state, else ''. A rescale stands for its stop.

    A failed run should run, unless the commit failed at an end that a user has requested.
    """
    if run is None:
        return ""
    if run.run_state is RunState.FAILED and failure_code != "commit-failed" and job.archived_at is None:
        return "running"
    if run.is_terminal:
        return ""
    for operation in active:
        kind = operation_type(operation.kind)
        if operation.part_of_id is None and kind.goal:
            return kind.goal
    return _DESIRED_STATES.get(run.run_state, "running")


def state_since(run: Run | None, attempt_ended_at: datetime | None, active: Sequence[Operation]) -> datetime | None:
    """Since when a run has its state, or records flow. `attempt_ended_at`: end of the newest attempt that ended."""
    if run is None:
        return None
    if run.run_state in STATES_BETWEEN_ATTEMPTS:
        return attempt_ended_at or run.created_at
    ending = [each.kind for each in operation_types() if run.run_state in each.states]
    times = [operation.created_at for operation in active if operation.kind in ending]
    return times[0] if times else run.started_at or run.created_at


def run_failure(run: Run | None, schema: Schema) -> FailureDetail | None:
    """The failure of a failed run; None for other runs."""
    if run is None or run.state != RunState.FAILED:
        return None
    return failure_detail(run.failure, run.version, schema, NO_REASON)


def _is_settled(page: JobPage) -> bool:
    """Whether the page can change only by a user's request: no live run, active operation or compilation."""
    busy = page.run is not None and not page.run.is_terminal
    compiling = page.newest_version is not None and page.newest_version.state == VersionState.COMPILING
    return not (busy or compiling or page.active)
