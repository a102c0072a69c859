"""Runs of a job, their attempts, the operators that a run restored, and the subtasks of an operator."""

import math
from typing import Final

from console.ui.tables.table import Column, Table, descending

_CELLS: Final = "runs/_cells.html"

RUNS: Final = Table(
    name="runs",
    row="run",
    cells=_CELLS,
    caption="Runs, newest first",
    style="stacked",
    empty="#no_runs",
    columns=(
        Column("pk", "Run", "#run", number=True, csv="id"),
        Column("state", "State", '{% state "run" value %}', csv="state"),
        Column("restored_from", "Restored from", "#restored_from"),
        Column("version_number", "Version", number=True),
        Column("version", value="version.number", csv="version"),
        Column("parallelism", "Parallelism", number=True, csv="parallelism"),
        Column("attempt_count", "Attempts", number=True),
        Column("created_at", csv="created_at"),
        Column("started_at", "Started", "{% ago value %}", csv="started_at"),
        Column("duration", "Duration", "{% lasting run.started_at run.ended_at %}", number=True),
        Column("ended_at", csv="ended_at"),
    ),
)

ATTEMPTS: Final = Table(
    name="attempts",
    row="attempt",
    cells=_CELLS,
    caption="Attempts of the latest run, newest first",
    style="stacked",
    empty='<p class="empty">No attempt yet.</p>',
    columns=(
        Column("number", "Attempt", "#attempt", number=True, style="mono"),
        Column("outcome", "Outcome", "#outcome", style="wrap"),
        Column("started_at", "Started", "{% ago value %}"),
        Column("duration", "Duration", "{% lasting attempt.started_at attempt.ended_at %}", number=True),
    ),
)

RUN_ATTEMPTS: Final = Table(
    name="run_attempts",
    row="shown",
    cells=_CELLS,
    caption="Attempts, newest first",
    region="Attempts of the run",
    style="stacked",
    row_id="attempt-{{ shown.row.token }}",
    after="#after_attempt",
    empty='<p class="empty">No attempt yet.</p>',
    columns=(
        Column("number", "Attempt", "{% attempt shown.row.number shown.row.token %}", number=True, style="mono"),
        Column("outcome", "Outcome", "#run_outcome", value="row.outcome"),
        Column("reason", "Reason", "#failure", style="value"),
        Column("restored", "Restored", "#restored", value="row.restored_checkpoint"),
        Column("started", "Started", "{% ago value %}", value="row.started_at"),
        Column("duration", "Duration", "#attempt_duration", number=True),
    ),
)

RESTORED_OPERATORS: Final = Table(
    name="restored_operators",
    row="operator",
    caption="What became of each operator in the restore",
    region="Restored operators",
    columns=(
        Column("name", "Operator", style="anywhere"),
        Column("fate", "In the restore", style="wrap"),
        Column("state_bytes", "State", "size", number=True),
    ),
)

SUBTASKS: Final = Table(
    name="subtasks",
    row="row",
    cells=_CELLS,
    caption="Subtasks of {{ operator.name }}",
    region="Table of subtasks",
    empty="#no_subtasks",
    columns=(
        Column("skew", "Subtask", value="index", number=True, style="mono",
               sort=descending("skew"), order=lambda row: abs(row.share - 1)),
        Column("rate", "Rate", "#subtask_rate", value="rate_per_s", number=True,
               sort=descending("rate"), order=lambda row: row.rate_per_s),
        Column("busy", "Busy", "percent", number=True, sort=descending("busy"), order=lambda row: row.busy),
        Column("backpressure", "Backpressured", "percent", value="backpressured", number=True,
               sort=descending("backpressure"), order=lambda row: row.backpressured),
        Column("watermark", "Watermark", "quantity", number=True),
        Column("state", "State", "size", value="state_bytes", number=True,
               sort=descending("state"), order=lambda row: row.state_bytes),
        # an awaited acknowledgement is later than all others
        Column("acknowledgement", "Acknowledged after", "#acknowledgement", value="acknowledged_ms", number=True,
               sort=descending("acknowledgement"),
               order=lambda row: math.inf if row.is_awaited else row.acknowledged_ms),
    ),
)  # fmt: skip
