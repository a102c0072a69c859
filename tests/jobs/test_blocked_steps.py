"""A step that stands still: what lies before it is bounded, and its neighbours go on."""

import time
from pathlib import Path

import psutil

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.builder import Dataflow
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Gated
from tests.jobs.live import Run
from tests.jobs.numbers import SCHEMA, Numbers
from tests.jobs.test_ended_branches import Answers, Service
from tests.waiting import until

MAX_GROWTH = 64 << 20  #: bytes, of all slots; without credits the source would send hundreds of MB in 20 s


def is_steady(run: Run, answers: Answers) -> bool:
    """Whether the source sends no rows and the step no requests, over several reports."""
    before = run.operator("rows")["records_out"], answers.count()
    time.sleep(0.7)
    return before == (run.operator("rows")["records_out"], answers.count())


def test_memory_is_flat_and_others_go_on_while_a_step_is_blocked(tmp_path: Path, jobs: Jobs) -> None:
    """S4-19: for 20 s on Spark. The channels of the other branch are on the same connections between the slots."""
    answers, endless, blocked_s = Answers(), Gated(total=10), 20.0 if jobs.launcher else 3.0
    flow = Dataflow("blocked")
    rows = flow.source("rows", Numbers(total=10_000_000, batch=10_000, keys=50, unbounded=True)).key_by("key")
    shuffled = rows.batches("shuffled", lambda batch: batch, max_rows=100, max_wait_ms=10)
    asked = shuffled.async_map("ask", Service(answers), SCHEMA, capacity=20, timeout_ms=600_000)
    asked.sink("out", ParquetSink(str(tmp_path / "out")))
    beside = flow.source("endless", endless).key_by("key")
    passed = beside.batches("passed", lambda batch: batch, max_rows=100, max_wait_ms=10)
    passed.sink("beside", ParquetSink(str(tmp_path / "beside")))
    settings = CoordinatorSettings(interval_ms=None)  # its barrier would wait behind the rows of the step
    with jobs.running(flow.compile(2), tmp_path / "state", settings=settings) as run:
        run.wait_for(lambda: answers.count() and run.records.live.get("slots"))
        processes = [psutil.Process(pid) for pid in {slot["pid"] for slot in run.records.live["slots"]}]
        until(lambda: is_steady(run, answers))  # all that has been granted arrives
        sent, requests = run.operator("rows")["records_out"], answers.count()
        began, sizes = time.monotonic(), list[int]()
        while time.monotonic() - began < blocked_s:
            sizes.append(sum(process.memory_info().rss for process in processes))
            endless.total += 10
            run.wait_for(lambda: run.operator("beside")["records_in"] == 4 * endless.total)
        assert len(sizes) >= 3
        assert answers.count() == requests, "it was blocked"
        assert max(sizes) - sizes[0] < MAX_GROWTH
        assert run.operator("rows")["records_out"] == sent, "the source waits for credit"
        run.end("cancel")
