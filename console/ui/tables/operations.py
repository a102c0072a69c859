"""Operations: of all jobs, of a job and of a run; and the parts of an operation."""

from typing import Final

from console.ui.tables.table import Column, Table

_CELLS: Final = "operations/_cells.html"
_KIND: Final = Column("kind", "Operation", "#kind", csv="kind")
_STATE: Final = '{% include "operations/_state.html" %}'
_BY: Final = Column("requested_by", "By", value="requested_by.username", csv="requested_by")
_REQUESTED: Final = Column("created_at", "Requested", "{% ago value %}", csv="requested")
_DURATION: Final = Column("duration", "Duration", "#duration", number=True)

OPERATIONS: Final = Table(
    name="operations",
    row="operation",
    cells=_CELLS,
    caption="Operations of all jobs, newest first",
    empty="#no_operations",
    columns=(
        Column("pk", csv="id"),
        _KIND,
        Column("job", "Job", "#job", value="job.name", csv="job"),
        Column("run_id", csv="run"),
        Column("state", "State", _STATE, csv="state"),
        Column("run.state", csv="run_state"),
        Column("phase", csv="phase"),
        _BY,
        Column("reason", "Reason", 'truncatechars:40|default:"–"', csv="reason"),
        _REQUESTED,
        Column("started_at", csv="started"),
        Column("ended_at", csv="ended"),
        _DURATION,
        Column("error.message", csv="error"),
        Column("request_id", csv="request_id"),
        Column("result.changes", csv="changes"),
    ),
)

JOB_OPERATIONS: Final = Table(
    name="job_operations",
    row="operation",
    cells=_CELLS,
    caption="Operations, newest first",
    style="stacked",
    empty="#no_job_operations",
    columns=(_KIND, Column("state", "State", _STATE), _BY, _REQUESTED, _DURATION),
)

RUN_OPERATIONS: Final = Table(
    name="run_operations",
    row="operation",
    cells=_CELLS,
    caption="Operations on the run, newest first",
    region="Operations on the run",
    style="stacked",
    columns=(
        _KIND,
        Column("state", "State", _STATE, style="value"),
        _BY,
        Column("reason", "Reason", 'truncatechars:80|default:"–"', style="value"),
        _REQUESTED,
    ),
)

CHANGES: Final = Table(
    name="changes",
    row="name, values",
    cells=_CELLS,
    caption="Values before and after the operation",
    region="Table of changes",
    columns=(
        Column("value", "Value", "{{ name|words }}"),
        Column("before", "Before", "{{ values.0|pretty_json }}", style="value"),
        Column("after", "After", "{{ values.1|pretty_json }}", style="value"),
    ),
)

PHASES: Final = Table(
    name="phases",
    row="phase",
    cells=_CELLS,
    caption="Phases of the operation, in order",
    region="Table of phases",
    columns=(
        Column("label", "Phase"),
        Column(
            "started",
            "Started (UTC)",
            '<span class="q">{{ value }}</span><span class="under">{% ago phase.at %}</span>',
        ),
        Column("until", "Duration", "#phase_duration", number=True),
    ),
)
