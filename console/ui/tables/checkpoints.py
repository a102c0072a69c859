"""Checkpoints: of a job, to review, and the parts of a checkpoint's page."""

from typing import Final

from console.ui.tables.table import Column, Table
from runtime.core.checkpoint.acknowledgements import PHASES

_CELLS: Final = "checkpoints/_cells.html"
_STATUS: Final = Column("status", "Status", "#status", csv="status")
_DURATION: Final = Column("duration_ms", "Duration", "duration", number=True, csv="duration_ms")
_SIZE: Final = Column("size_bytes", "Full size", "size", number=True, csv="size_bytes")
_WRITTEN: Final = Column("written_bytes", "Written", "size", number=True, csv="written_bytes")
_PHASE_LABELS: Final = ("Start delay", "Alignment", "Pre-barrier", "Sync", "Async")

#: `dated`: the list of checkpoints; otherwise the newest on the page of a job.
CHECKPOINTS: Final = Table(
    name="checkpoints",
    row="checkpoint",
    cells=_CELLS,
    caption="Checkpoints, newest first",
    style="stacked",
    columns=(
        Column("pk", csv="id"),
        Column("number", "Id", "#number", number=True, csv="number"),
        Column("kind", "Kind", "#kind", csv="kind"),
        _STATUS,
        Column("reason", csv="reason"),
        Column("run", value="run_id", csv="run"),
        Column("triggered", "Triggered", "{% ago value %}", value="triggered_at", only="not dated"),
        Column("triggered_at", "Triggered (UTC)", "#triggered", only="dated", csv="triggered_at"),
        Column("completed_at", csv="completed_at"),
        _DURATION,
        _SIZE,
        _WRITTEN,
        Column("run_id", "Run", number=True, only="dated"),
        Column(
            "finished_operators",
            "Finished operators",
            'operators:view.page.version.graph|default:"–"',
            style="wrap",
            only="not dated",
        ),
        Column("review_state", "Review", '{% state "review" value %}'),
        Column("compare", "Compare", "#compare", only="dated"),
        Column("name", csv="name"),
        Column("path", csv="path"),
    ),
)

REVIEWS: Final = Table(
    name="reviews",
    row="checkpoint",
    cells=_CELLS,
    caption="Checkpoints that need a look, newest first",
    region="Table of checkpoints to review",
    columns=(
        Column("checkpoint", "Checkpoint", "#to_review"),
        Column("job", "Job", "#job"),
        Column("concerns", "Concern", "concern_words"),
        Column("status", "Status", "#reviewed_status"),
        Column("triggered_at", "Triggered", "{% ago value %}"),
        Column("duration_ms", "Duration", "#reviewed_duration", number=True),
        _SIZE,
        Column("assignee", "Assignee", "#assignee"),
    ),
)

CHECKPOINT_OPERATORS: Final = Table(
    name="checkpoint_operators",
    row="line",
    cells=_CELLS,
    caption="Operators of this checkpoint; each time is the maximum of its subtasks",
    region="Table of operators",
    style="stacked",
    columns=(
        Column("name", "Operator", "#operator"),
        Column("finished", "Status", "#operator_status"),
        Column("subtasks", "Subtasks", number=True),
        Column("state_bytes", "State", "size", number=True),
        Column("share", "Share of state", "#share", header='<span class="visually-hidden">Share of state</span>'),
        Column("written_bytes", "Written", "size", number=True),
        *(
            Column(phase, label, "duration", value=f"phases_ms.{place}", number=True)
            for place, (phase, label) in enumerate(zip(PHASES, _PHASE_LABELS, strict=True))
        ),
    ),
)

_OUTCOME: Final = Column("state", "Outcome", "#outcome")

DRILLS: Final = Table(
    name="drills",
    row="operation",
    cells=_CELLS,
    caption="Restore drills of this snapshot, newest first",
    region="Table of drills",
    columns=(
        Column("created_at", "Drill", "#drill"),
        _OUTCOME,
        Column("result.restored_bytes", "Restored", "size", number=True),
        Column("result.start_ms", "Run began", "duration", number=True),
        Column("result.first_record_ms", "First records", "duration", number=True),
        Column("result.first_checkpoint_ms", "First checkpoint", "duration", number=True),
        Column("result.checkpoint_bytes", "Its size", "size", number=True),
    ),
)

COPIES: Final = Table(
    name="copies",
    row="operation",
    cells=_CELLS,
    caption="Copies of this savepoint, newest first",
    region="Table of copies",
    columns=(
        Column("created_at", "Copy", "#copy"),
        _OUTCOME,
        Column("result.path", "Folder", "default:operation.params.target", style="mono wrap"),
        Column("result.bytes", "Size", "size", number=True),
    ),
)

RESTORED_RUNS: Final = Table(
    name="restored_runs",
    row="run",
    cells=_CELLS,
    caption="Runs that were restored from this snapshot, newest first",
    region="Table of restored runs",
    columns=(
        Column("run", "Run", "#restored_run"),
        Column("state", "State", '{% state "run" value %}'),
        Column("restored", "Restored", "#restored"),
        Column("version.number", "Version", number=True),
        Column("parallelism", "Parallelism", number=True),
    ),
)

FILES: Final = Table(
    name="files",
    row="file",
    caption="Files of the snapshot with the result of their check",
    region="Table of files",
    columns=(
        Column("path", "File", '{{ value }}<span class="under">{{ file.checksum }}</span>', style="mono wrap"),
        Column("bytes", "Size", "size", number=True),
        Column("result", "Result", "{{ value }}", style="wrap"),
    ),
)

CHECKED_STATES: Final = Table(
    name="checked_states",
    row="state",
    caption="States of the snapshot with the result of their check",
    region="Table of states",
    columns=(
        Column("operator", "Operator", style="mono wrap"),
        Column("state", "State", style="mono wrap"),
        Column("entries", "Entries", "exact", number=True),
        Column("result", "Result", "{{ value }}", style="wrap"),
    ),
)
