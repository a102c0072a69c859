"""The storage of a job's checkpoints: deletions by the policy, orphans, and the statistics of checkpoints."""

from typing import Final

from console.ui.tables.table import Column, Table

_CELLS: Final = "checkpoints/_cells.html"
_CHECKPOINT: Final = (
    Column("checkpoint.number", "Id", "#number", number=True),
    Column("checkpoint.kind", "Kind", "#kind"),
    Column("checkpoint.triggered_at", "Triggered", "{% ago value %}"),
    Column("checkpoint.run_id", "Run", number=True),
    Column("checkpoint.size_bytes", "Full size", "size", number=True),
)

DELETED_CHECKPOINTS: Final = Table(
    name="deleted_checkpoints",
    row="line",
    cells=_CELLS,
    caption="Checkpoints that would be deleted, newest first",
    region="Checkpoints that would be deleted",
    empty='<p class="empty"><strong>Nothing would be deleted.</strong></p>',
    columns=(
        *_CHECKPOINT,
        Column("freed_bytes", "Freed", "size", number=True),
        Column("needed_by", "Files that stay", "#needed_by"),
    ),
)

KEPT_CHECKPOINTS: Final = Table(
    name="kept_checkpoints",
    row="line",
    cells=_CELLS,
    caption="{{ label }}, newest first",
    region="{{ label }}",
    empty='<p class="empty"><strong>No checkpoint stays.</strong></p>',
    columns=(*_CHECKPOINT, Column("reasons", "Why it stays", 'join:" "', style="wrap")),
)

ORPHANS: Final = Table(
    name="orphans",
    row="folder",
    caption="Folders without a checkpoint, by name",
    region="Folders without a checkpoint",
    empty='<p class="empty">Each folder has its checkpoint.</p>',
    columns=(
        Column("name", "Folder", style="mono anywhere"),
        Column("nbytes", "Size", "{{ value|size }}", number=True),
        Column("changed_at", "Changed", "{% if value is None %}unknown{% else %}{% ago value %}{% endif %}"),
    ),
)

MISSING_CHECKPOINTS: Final = Table(
    name="missing_checkpoints",
    row="checkpoint",
    cells=_CELLS,
    caption="Checkpoints without files, newest first",
    region="Checkpoints without files",
    empty='<p class="empty">Each checkpoint that can be restored has its manifest.</p>',
    columns=(
        Column("number", "Id", "#missing", number=True),
        Column("kind_words", "Kind"),
        Column("triggered_at", "Triggered", "{% ago value %}"),
        Column("path", "Folder", style="mono anywhere"),
    ),
)

DAYS: Final = Table(
    name="days",
    row="day, next",
    cells=_CELLS,
    caption="Completed and failed checkpoints by day, newest first",
    region="Numbers by day",
    columns=(
        Column("day", "Day", "#day", csv="day"),
        Column("checkpoints", "Checkpoints", number=True, csv="checkpoints"),
        Column("duration_p50_ms", "Duration, median", "duration", number=True, csv="duration_p50_ms"),
        Column("duration_p95_ms", "Duration, p95", "duration", number=True, csv="duration_p95_ms"),
        Column("size_p50_bytes", "Full size, median", "size", number=True, csv="size_p50_bytes"),
        Column("size_p95_bytes", "Full size, p95", "size", number=True, csv="size_p95_bytes"),
        Column("failures", "Failed, by reason", "#failures", style="wrap"),
        Column("failed", csv="failed"),
    ),
)

FAILURES: Final = Table(
    name="failures",
    row="failures",
    cells=_CELLS,
    caption="Failed checkpoints by reason, most frequent first",
    region="Table of failures",
    empty='<p class="empty">No checkpoint has failed.</p>',
    columns=(
        Column("reason", "Reason", "words|capfirst"),
        Column("number", "Failures", "exact", number=True),
        Column("counted", "Counts towards the limit", 'yesno:"yes,no"', only="has_limit"),
        Column("newest.number", "Newest", "#newest", number=True),
        Column("newest.detail", "Details of the newest", style="wrap"),
    ),
)

STATES: Final = Table(
    name="states",
    row="state",
    cells=_CELLS,
    caption="States of this checkpoint, by operator",
    region="Table of states",
    empty='<p class="empty">No operator of this checkpoint has state.</p>',
    columns=(
        Column("operator", "Operator", "operator:checkpoint.run.version.graph"),
        Column("name", "State", "#state"),
        Column("kind", "Kind"),
        Column("subtasks", "Subtasks", number=True),
        Column("rows", "Rows in files", "exact", number=True),
        Column("nbytes", "Size", "#state_size", number=True),
        Column("view", "View in SQL", 'default:"contents"', style="mono"),
    ),
)

STATE_QUERIES: Final = Table(
    name="state_queries",
    row="query",
    cells=_CELLS,
    caption="Queries of this checkpoint, newest first",
    region="Table of results",
    columns=(
        Column("title", "Query", "#query"),
        Column("state", "State", '{% state "query" value %}'),
        Column("created_at", "Requested", "{% ago value %}"),
        Column("requested_by", "By"),
    ),
)
