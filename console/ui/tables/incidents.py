"""Incidents: the jobs that are not well now, the list, and the timeline and alerts of an incident."""

from typing import Final

from console.ui.tables.table import Column, Table

_CELLS: Final = "incidents/_cells.html"
_JOB: Final = Column("job", "Job", "#job", style="anywhere")
_CAUSE: Final = Column("finding", "Cause", "#cause", style="wrap")
_OPERATOR: Final = Column("operator_name", "Operator", style="anywhere")
_TAKEN: Final = Column("taken_by", "Taken by", "#taken")

NOW: Final = Table(
    name="now",
    row="incident",
    cells=_CELLS,
    caption="Jobs that are not well now, the most severe first",
    style="stacked",
    empty="#no_incident_now",
    columns=(
        _JOB,
        _CAUSE,
        _OPERATOR,
        Column("opened_at", "Since", "{% ago value %}"),
        Column("act", "Act", "#act", style="wrap"),
        _TAKEN,
    ),
)

INCIDENTS: Final = Table(
    name="incidents",
    row="incident",
    cells=_CELLS,
    caption="Incidents, newest first",
    style="stacked",
    empty="#no_incidents",
    columns=(
        Column("pk", "Incident", "#incident", number=True),
        Column("job", "Job", "#job_link", style="anywhere"),
        Column("closed_at", "State", "#state"),
        _CAUSE,
        _OPERATOR,
        Column("opened_at", "Opened", "{% ago value %}"),
        Column("duration", "Duration", "{% lasting incident.opened_at incident.closed_at %}", number=True),
        _TAKEN,
    ),
)

TIMELINE: Final = Table(
    name="timeline",
    row="entry",
    cells=_CELLS,
    caption="Events of the incident, newest first",
    region="Table of events",
    style="stacked",
    columns=(
        Column("event", "Event", "#event"),
        Column("at", "Time", "{% ago value %}"),
        Column("text", "Details", "#text", style="wrap"),
        Column("by", "By"),
    ),
)

DELIVERIES: Final = Table(
    name="deliveries",
    row="delivery",
    cells=_CELLS,
    caption="Alerts of the incident, newest first",
    region="Table of alerts",
    style="stacked",
    empty="#no_deliveries",
    columns=(
        Column("channel", "Channel", style="anywhere"),
        Column("event", "Alert", "capfirst"),
        Column("created_at", "Added", "{% ago value %}"),
        Column("delivered_at", "Delivered", "#delivered", style="wrap"),
        Column("tries", "Tries", number=True),
    ),
)

VERSION_CHANGES: Final = Table(
    name="version_changes",
    row="difference",
    cells=_CELLS,
    caption="Changes of the version before the incident",
    region="Table of changes of the version",
    style="stacked",
    columns=(
        Column("name", "Name", "#difference"),
        Column("before", "Before", "{{ value|pretty_json }}", style="value"),
        Column("after", "After", "{{ value|pretty_json }}", style="value"),
    ),
)
