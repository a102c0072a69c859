"""The list of jobs, and the jobs of an act on several."""

from typing import Final

from console.pages import selectors
from console.ui.tables.table import Column, Table, descending

_LAG_NOTE: Final = (
    "Lag: how far the watermark is behind the clock, whether records wait or none come; historic data has none. Lines: "
    "the last hour, up to the number above them."
)

JOBS: Final = Table(
    name="jobs",
    row="line",
    cells="jobs/_cells.html",
    caption="Jobs, with their latest state and metrics",
    style="stacked",
    foot=_LAG_NOTE,
    empty="#no_jobs",
    columns=(
        Column("id", value="job.pk", csv="id"),
        Column("name", "Job", "#job", value="job.name", sort=("name",), csv="name", style="anywhere"),
        Column("pipeline", value="job.pipeline", csv="pipeline"),
        Column("owner", value="job.owner", csv="owner"),
        Column("tags", value=lambda line: " ".join(line.job.tags), csv="tags"),
        Column("health", "State", "#state", value="run.state", sort=("",), csv="state", header="#state_header"),
        Column("run", value="run.pk", csv="run"),
        Column("level", value="health.health", csv="health"),
        Column("finding", value="finding", csv="finding"),
        Column("recovery_point", value="job.health.recovery_at", csv="recovery_point"),
        Column("checkpoint", "Latest checkpoint", "#checkpoint", value="checkpoint.number", csv="checkpoint",
               sort=("checkpoint", "-checkpoint"), order=lambda now: selectors.checkpoint_order()),
        Column("checkpoint_triggered_at", value="checkpoint.triggered_at", csv="checkpoint_triggered_at"),
        Column("lag", "Lag", "#lag", value="lag_ms", csv="lag_ms", number=True,
               sort=descending("lag"), order=selectors.lag_order),
        Column("rate", "Records in", "#rate", value="flow.rate_in", csv="records_in_per_s", number=True,
               sort=descending("rate"), order=lambda now: selectors.rate_order(now, "records_in")),
        Column("rate_out", "Records out", "rate", value="flow.rate_out", csv="records_out_per_s", number=True,
               sort=descending("rate_out"), order=lambda now: selectors.rate_order(now, "records_out")),
        Column("parallelism", "Parallelism", number=True,
               sort=descending("parallelism"), order=lambda now: selectors.parallelism_order()),
        Column("restarts", "Restarts", value=lambda line: line.restarts if line.run else None, csv="restarts",
               number=True, sort=descending("restarts"), order=lambda now: selectors.restarts_order()),
    ),
)  # fmt: skip

_JOB: Final = Column(
    "job", "Job", "#job_link", style="{% if line.job.name|length > 32 %}anywhere{% else %}nowrap{% endif %}"
)
_STATE: Final = Column("run.state", "State", '{% state "run" value %}', only="not is_of_tags")

BULK_JOBS: Final = Table(
    name="bulk_jobs",
    row="line",
    cells="jobs/_cells.html",
    caption="Selected jobs by name",
    region="Table of selected jobs",
    style="stacked",
    columns=(_JOB, _STATE, Column("effect", "Effect", "#bulk_effect", style="wrap")),
)

BULK_RESULTS: Final = Table(
    name="bulk_results",
    row="line",
    cells="jobs/_cells.html",
    caption="Result for each job, by name",
    region="Table of results",
    style="stacked",
    columns=(_JOB, _STATE, Column("result", "Result", "#bulk_result", style="wrap")),
)
