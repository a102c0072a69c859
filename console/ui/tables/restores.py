"""The effects of a restore and a rescale on a job, and its earlier rescales."""

from typing import Final

from console.ui.tables.table import Column, Table

_CELLS: Final = "jobs/_restore_cells.html"

MAPPING: Final = Table(
    name="mapping",
    row="operator",
    cells=_CELLS,
    caption="{{ label }}",
    region="{{ label }}",
    style="stacked",
    columns=(
        Column("uid", "Operator", "operator:plan.version.graph", style="anywhere"),
        Column("fate", "In this restore", "{{ value }}"),
        Column("reason", "Reason", "{{ value }}", style="wrap"),
        Column("parallelism_after", "Parallelism", "#parallelism", number=True),
        Column("state_bytes", "State", "size", number=True),
    ),
)

RESCALE_FIGURES: Final = Table(
    name="rescale_figures",
    row="figure",
    caption="The run now, and the run that continues",
    region="Figures of the rescale",
    columns=(
        Column("term", "Figure", header='<span class="visually-hidden">Figure</span>'),
        Column("now", "Now", "{{ value }}", number=True),
        Column("after", "After", "{{ value }}", number=True),
    ),
)

RESCALES: Final = Table(
    name="rescales",
    row="rescale",
    cells=_CELLS,
    caption="Rescales of the job, newest first",
    region="Table of rescales",
    columns=(
        Column("operation.created_at", "Requested", "#requested"),
        Column(
            "parallelism",
            "Parallelism",
            '<span class="q">{{ rescale.former }}</span> → <span class="q">{{ value }}</span>',
        ),
        Column("version", "Version", "#version"),
        Column("downtime_ms", "Downtime", "duration", number=True),
        Column("run", "Runs", "#runs"),
        Column("operation.state", "Outcome", "#outcome"),
    ),
)
