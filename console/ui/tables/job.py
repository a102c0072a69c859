"""The page of a job: its operators, their load, slots, and stages; its versions and their differences."""

from typing import Final

from console.ui.tables.table import Column, Table

_CELLS: Final = "jobs/_job_cells.html"

OPERATORS: Final = Table(
    name="operators",
    row="node",
    cells=_CELLS,
    caption="Operators, with the same data as the picture",
    columns=(
        Column("name", "Operator", "#operator", style="anywhere"),
        Column("state", "State", "#operator_state"),
        Column("parallelism", "Parallelism", "#skew", number=True),
        Column("numbers.records_in", "Records in", "#records_in", number=True),
        Column("numbers.records_out", "Records out", "#records_out", number=True),
        Column("stage.number", "Stage", number=True, only="picture.is_batch"),
        Column("watermark", "Watermark", "quantity", number=True, only="not picture.is_batch"),
        Column("busy", "Busy", "quantity", number=True, only="not picture.is_batch"),
        Column("backpressured", "Backpressured", "quantity", number=True, only="not picture.is_batch"),
        Column("sends_to", "Sends to", "#sends_to", style="wrap"),
    ),
)

LOAD: Final = Table(
    name="load",
    row="row",
    caption="Load of operators in this time",
    region="Load of operators",
    columns=(
        Column("name", "Operator", style="anywhere"),
        Column("busy", "Busy, mean", "quantity", number=True),
        Column("backpressured", "Backpressured, mean", "quantity", number=True),
        Column("most_backpressured", "Backpressured, highest", "quantity", number=True),
    ),
)

INSPECTED_SUBTASKS: Final = Table(
    name="inspected_subtasks",
    row="line",
    cells=_CELLS,
    caption="Subtasks of {{ inspector.name }}, the most skewed first; rates of the last 5 s",
    region="Subtasks of {{ inspector.name }}",
    style="dense",
    empty='<p class="muted small">No numbers of subtasks in the last hour.</p>',
    columns=(
        Column("index", "Subtask", number=True, style="mono"),
        Column("rate", "Rate", "#subtask_rate", number=True),
        Column("spark", "Last hour", "#spark"),
        Column("busy", "Busy", "#busy", number=True, header='Busy<span class="under">backpressured</span>'),
        Column("watermark", "Watermark", "quantity", number=True),
    ),
)

SLOTS: Final = Table(
    name="slots",
    row="slot",
    cells=_CELLS,
    caption="Slots: the Spark tasks that run the subtasks",
    style="stacked",
    after="#slot_log",
    empty="#no_slots",
    columns=(
        Column("index", "Slot", number=True, style="mono"),
        Column("pid", "Process", number=True),
        Column("host", "Host"),
        Column("executor", "Executor", 'default:"–"', number=True),
        Column("memory_bytes", "Memory", "#memory", number=True),
        Column("seen_at", "Last heartbeat", "#heartbeat", number=True),
    ),
)

STAGES: Final = Table(
    name="stages",
    row="stage",
    cells=_CELLS,
    caption="PySpark stages of the run",
    columns=(
        Column("operator", "Operator", style="anywhere"),
        Column("state", "State", "#stage_state", style="wrap"),
        Column("reported_at", "Last report", "{% if value %}{% ago value %}{% else %}–{% endif %}"),
        Column("deaths", "Process failures", "exact", number=True),
        Column("figures", "Metrics", "#figures"),
    ),
)

BATCH_STAGES: Final = Table(
    name="batch_stages",
    row="stage",
    cells=_CELLS,
    caption="Stages of the Spark plan, with their tasks and records",
    columns=(
        Column("number", "Stage", number=True, style="mono"),
        Column("name", "Operators", "{{ value }}", style="wrap"),
        Column("state", "State", "#batch_state"),
        Column("tasks_done", "Tasks complete", "#tasks", number=True),
        Column("tasks_failed", "Failed attempts", "exact", number=True),
        Column("records_read", "Records read", "#records", number=True),
        Column("records_written", "Records written", "#records", number=True),
        Column("duration_ms", "Duration", "duration", number=True),
    ),
)

VERSIONS: Final = Table(
    name="versions",
    row="version, kept",
    cells=_CELLS,
    caption="Versions, newest first",
    columns=(
        Column("number", "Version", number=True),
        Column("compared", "From, to", "#compared", only="can_compare"),
        Column("state", "State", "#version_state"),
        Column("message", "Message", style="wrap"),
        Column("parallelism", "Parallelism", number=True),
        Column("run_count", "Runs", number=True),
        Column("created_at", "Created", "#created"),
        Column("acts", "Acts", "#version_acts", header='<span class="visually-hidden">Acts</span>'),
    ),
)

_VERSION_VALUE: Final = '{% if value is None %}<span class="muted">absent</span>{% else %}{{ value }}{% endif %}'

DIFFERENCES: Final = Table(
    name="differences",
    row="row",
    caption="Differences between the two versions",
    region="Differences",
    style="stacked",
    columns=(
        Column("part", "Part", "capfirst"),
        Column("name", "Name", style="mono", is_head=True),
        Column("before", "Version {{ base.number }}", _VERSION_VALUE, style="value mono"),
        Column("after", "Version {{ other.number }}", _VERSION_VALUE, style="value mono"),
    ),
)

ERROR_COUNTS: Final = Table(
    name="error_counts",
    row="count",
    caption="Dead letters by operator and type of error",
    region="Dead letters by operator and type of error",
    empty='<p class="empty"><strong>No row was set aside.</strong></p>',
    columns=(
        Column("operator", "Operator", style="mono anywhere"),
        Column(
            "error",
            "Error",
            '<a href="{% here operator=count.operator error=count.error offset=None %}">{{ value }}</a>',
            style="anywhere",
        ),
        Column("rows", "Rows", "exact", number=True),
        Column("newest", "Newest", "{% ago value %}"),
    ),
)

DEAD_LETTERS: Final = Table(
    name="dead_letters",
    row="letter",
    caption="Dead letters, newest first",
    region="Dead letters",
    empty='<p class="empty">There is none.</p>',
    columns=(
        Column("at", "Set aside", "{% ago value %}"),
        Column("operator", "Operator", style="mono anywhere"),
        Column(
            "error",
            "Error",
            "<details><summary>{{ value }}: {{ letter.message }}</summary>"
            '<pre tabindex="0" role="region" aria-label="Traceback">{{ letter.traceback }}</pre></details>',
            style="anywhere wrap",
        ),
        Column("row", "Row", style="mono anywhere wrap"),
    ),
)
