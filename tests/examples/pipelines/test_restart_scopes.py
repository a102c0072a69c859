"""The share of each shipped pipeline that restarts after the failure of a slot, as the page of the examples has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from examples.pipelines import (
    change_capture,
    clickstream,
    components,
    enrichment,
    flights,
    order_payments,
    spark_words,
    word_table,
    wordcount,
)
from runtime.core.attempt.failover_regions import RestartReason, region_cause, restart_scope
from runtime.dataflow.pipelines import Pipeline, PipelineContext
from runtime.dataflow.plan import CompiledJob

SLOTS: Final = 4
PAGE: Final = Path(__file__).parents[3] / "docs" / "examples" / "README.md"
DATABASE: Final = {"database_url": "postgresql://user@host/database"}
PIPELINES: Final[list[tuple[Pipeline[Any], dict[str, str]]]] = [
    (change_capture.PIPELINE, DATABASE),
    (clickstream.PIPELINE, {}),
    (components.PIPELINE, {"edges_dir": "/in", "output_dir": "/out"}),
    (enrichment.PIPELINE, DATABASE),
    (flights.PIPELINE, {"flights_dir": "/in", "output_dir": "/out"}),
    (order_payments.PIPELINE, {}),
    (spark_words.PIPELINE, {"lines_dir": "/in", "output_dir": "/out"}),
    (word_table.PIPELINE, {"lines_dir": "/in", "output_dir": "/out", **DATABASE}),
    (wordcount.PIPELINE, {"lines_dir": "/in", "output_dir": "/out"}),
]


def restarted_share(job: CompiledJob) -> tuple[int, int]:
    """The largest number of subtasks that restart with a slot, and the number of all subtasks."""
    scopes = [restart_scope(job.graph, job.failover_rules, {slot}) for slot in range(SLOTS)]
    subtasks = list(job.graph.subtasks)
    return max(sum(map(scope.restarts, subtasks)) for scope in scopes), len(subtasks)


def reason_of(job: CompiledJob) -> str:
    cause = region_cause(job.graph, job.failover_rules)
    if cause.reason == RestartReason.JOINED:
        kind = "a stage of PySpark feeds" if cause.source in job.sources else "the writers restart together of"
        return f"{kind} `{cause.source}`"
    if cause.reason == RestartReason.UNNUMBERED_ROWS:
        return f"the rows of `{cause.source}` have no numbers"
    if cause.kept:
        return f"`{', '.join(cause.kept)}` keep their state".replace(", ", "`, `")
    subtasks = {operator.parallelism for operator in job.graph.operators}
    return "a step has a single subtask" if subtasks == {1} else "the slots exchange no rows"


def line(pipeline: Pipeline[Any], parameters: dict[str, str]) -> str:
    job = pipeline.dataflow(parameters, PipelineContext("")).compile(SLOTS)
    restarted, subtasks = restarted_share(job)
    share = "all" if restarted == subtasks else f"{restarted} of {subtasks} subtasks"
    return f"| `{pipeline.name}` | {share} | {reason_of(job)} |"


def test_the_page_shows_how_much_of_each_pipeline_restarts() -> None:
    """S4-44: at least half of the pipelines restart less than all."""
    table = [line(*each) for each in PIPELINES]
    listed = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert listed == table
    assert 2 * sum("| all |" not in line for line in table) >= len(table)
