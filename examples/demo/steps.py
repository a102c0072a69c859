"""The steps of the demo. Each step performs an action, checks its result, and raises StoryFailed if it is wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from tqdm import tqdm

from examples.demo.api import Api
from examples.demo.children import Children
from examples.demo.live import FlowDetector, InputEndDetector, live_report
from examples.demo.output import Output
from examples.demo.spark import RecordCounts, records_by_job
from stack.processes import ProcessId, ancestors
from weir.control.console import Row

T = TypeVar("T")

RECORDS: Final = 336_776
WEATHER_READ: Final = 26_115  #: rows of the package's file
WEATHER_WRITTEN: Final = 26_112  #: hours: at the end of summer time, two rows merge at each of three airports
CLAIM_LIMIT_S: Final = 10.0  #: until another worker claims the run of a killed worker
FLOW_LIMIT_S: Final = 30.0  #: until records flow again in the reclaimed run
STEP_TIMEOUT_S: Final = 300.0  #: for all steps without a limit of their own
POLL_S: Final = 0.25
REST_FEED_S: Final = 12.0  #: feeding time of the remaining files after the restore


class StoryFailed(Exception):
    """A check of the demo failed; the text describes the observed result."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """A line of the table that the demo prints."""

    at_s: float
    took_s: float
    what: str


@dataclass
class Story:
    """The state of the demo: a job, its newest run, and the steps so far."""

    api: Api
    children: Children
    job: Row
    flights: Path
    output: Output
    bar: tqdm[NoReturn]
    began: float = field(default_factory=time.monotonic)
    results: list[StepResult] = field(default_factory=list)
    too_slow: list[str] = field(default_factory=list)
    late: int = 0
    run_id: int = 0

    @contextmanager
    def phase(self, title: str) -> Iterator[list[str]]:
        """Times a step and adds it to the table. The block appends details to the yielded list."""
        self.bar.set_description(title)
        started, details = time.monotonic(), list[str]()
        yield details
        took = time.monotonic() - started
        self.results.append(StepResult(started - self.began, took, ", ".join([title, *details])))
        self.bar.update(1)
        if self.bar.disable:
            print(f"{time.monotonic() - self.began:7.1f} s  {self.results[-1].what}", flush=True)

    def until(self, what: str, check: Callable[[Row], T | None]) -> T:
        """Polls the run until `check` returns a result other than None and False, and returns that result.

        Raises:
            StoryFailed: the time is up, or the run has failed.
        """
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while True:
            run = self.refresh_run()
            result = check(run)
            if result is not None and result is not False:
                return result
            if run["state"] == "failed":
                raise StoryFailed(f"run {run['id']} failed while waiting for {what}: {run['failure']}")
            if time.monotonic() > deadline:
                raise StoryFailed(f"{what}: not within {STEP_TIMEOUT_S:.0f} s (run {run['id']} is {run['state']})")
            time.sleep(POLL_S)

    def refresh_run(self) -> Row:
        """Reads the current run. Keeps the maximum number of late records: each attempt counts from 0."""
        run = self.api.run(self.run_id)
        now = live_report(run)
        if now is not None:
            self.late = max(self.late, now.late)
            self.bar.set_postfix_str(f"{run['state']}, {now.records:,} records since the attempt began")
        return run

    def check_time(self, what: str, took_s: float, limit_s: float) -> None:
        """Records a missed limit, which fails the demo only at the end, so that the result is checked first."""
        if took_s > limit_s:
            self.too_slow.append(f"{what} after {took_s:.1f} s, the limit is {limit_s:.0f} s")

    def operate(self, kind: str, **params: object) -> Row:
        return self.api.operate(int(self.job["id"]), kind, params, STEP_TIMEOUT_S)

    def completed_checkpoints(self) -> list[Row]:
        return self.api.checkpoints(int(self.job["id"]))


# ---------------------------------------------------------------- the steps


def start(story: Story, parallelism: int) -> None:
    with story.phase("start the job") as details:
        story.operate("start")
        story.run_id = int(story.api.latest_run(int(story.job["id"]))["id"])
        details.append(f"run {story.run_id} at parallelism {parallelism}")


def three_checkpoints(story: Story) -> None:
    with story.phase("wait for three completed checkpoints") as details:
        numbers = story.until("three checkpoints", lambda _: _at_least(story.completed_checkpoints(), 3))
        details.append(f"numbers {', '.join(str(row['number']) for row in numbers)}")
        story.until("a first committed file", lambda _: story.output.visible_files() or None)


def look_inside(story: Story) -> None:
    with story.phase("read the output with Spark while the job runs") as details:
        story.output.add_foreign_files()
        comparison = story.children.oracle(story.output.folder, partial=True)
        if comparison["unexpected"]:
            raise StoryFailed(f"the running job has committed {comparison['unexpected']} wrong rows")
        _check_visible_names(story, [str(name) for name in comparison["files"]])
        details.append(f"{comparison['committed']} rows in {len(comparison['files'])} committed files, all correct")


def check_spark_counts(story: Story) -> None:
    """Checks by Spark's own counts that PySpark read and wrote the tables that the job joins."""
    with story.phase("check the tables in Spark's event log") as details:
        folder = story.children.environment.event_log
        if folder is None:
            details.append("skipped: this stack was started without WEIR_SPARK_EVENT_LOG")
            return
        name = f"weir: run {story.run_id}, tables"
        counts = story.until("the end of the inputs", lambda _: _complete_counts(records_by_job(folder, name)))
        weather, history = counts["input weather"], counts["input history"]
        if weather != RecordCounts(WEATHER_READ, WEATHER_WRITTEN) or history != RecordCounts(RECORDS, RECORDS):
            raise StoryFailed(f"Spark's record counts differ from the files: {counts}")
        details.append(f"weather: {weather.read:,} records read, {weather.written:,} written")
        details.append(f"history: {history.read:,} records read, {history.written:,} written")


def savepoint(story: Story) -> None:
    with story.phase("savepoint") as details:
        story.operate("savepoint")
        newest = [row for row in story.completed_checkpoints() if row["kind"] == "savepoint"][-1]
        details.append(f"number {newest['number']} in {newest['duration_ms']} ms")


def kill_slot(story: Story) -> None:
    with story.phase("SIGKILL of a slot") as details:
        before = story.until("slots in the report", lambda run: run if _slots(run) else None)
        victim = max(_slots(before), key=lambda slot: int(slot["index"]))
        os.kill(int(victim["pid"]), signal.SIGKILL)
        killed, flow = time.monotonic(), FlowDetector(before)
        story.until("records to flow again", flow.flows)
        details.append(f"slot {victim['index']}, pid {victim['pid']}")
        details.append(f"records flow again after {time.monotonic() - killed:.1f} s")


def kill_worker(story: Story) -> None:
    with story.phase("SIGKILL of the worker that holds the run") as details:
        before = story.until("slots in the report", lambda run: run if _slots(run) else None)
        worker = _worker_above(int(_slots(before)[0]["pid"]))
        worker.send(signal.SIGKILL)
        killed, flow = time.monotonic(), FlowDetector(before)
        story.until("another worker", lambda run: _is_claimed_again(run, before))
        claimed_s = time.monotonic() - killed
        story.until("records to flow again", flow.flows)
        flowing_s = time.monotonic() - killed
        details.append(f"pid {worker.pid}, claimed by another worker after {claimed_s:.1f} s")
        details.append(f"records flow again after {flowing_s:.1f} s")
    story.check_time("the run was claimed", claimed_s, CLAIM_LIMIT_S)
    story.check_time("records flowed again", flowing_s, FLOW_LIMIT_S)


def stop(story: Story) -> Row:
    with story.phase("stop with savepoint") as details:
        story.operate("stop")
        story.until("the end of the run", lambda run: run["state"] == "stopped")
        newest = story.completed_checkpoints()[-1]
        if newest["kind"] != "stop":
            raise StoryFailed(f"the newest checkpoint after the stop is a {newest['kind']}")
        details.append(f"savepoint {newest['number']}")
        return newest


def restore(story: Story, checkpoint: Row, parallelism: int) -> None:
    with story.phase(f"restore at parallelism {parallelism}") as details:
        story.operate("restore", checkpoint=checkpoint["id"], parallelism=parallelism)
        story.run_id = int(story.api.latest_run(int(story.job["id"]))["id"])
        details.append(f"run {story.run_id} from savepoint {checkpoint['number']}")
        _check_foreign_files(story)


def feed_the_rest(story: Story) -> None:
    with story.phase("feed the rest of the year and wait until it is read") as details:
        story.children.stop_feeder()
        feeder = story.children.feeder(story.flights, REST_FEED_S)
        story.until("the feeder's end", lambda _: feeder.poll() is not None)
        if feeder.returncode:
            raise StoryFailed(f"the feeder ended with {feeder.returncode}: see {story.children.log_of('feeder')}")
        detector = InputEndDetector()
        story.until(
            "everything to be read",
            lambda run: detector.is_complete(run, int(story.completed_checkpoints()[-1]["number"])),
        )
        details.append(f"{len(list(story.flights.glob('flights-*.csv')))} files")


def drain(story: Story) -> None:
    with story.phase("drain") as details:
        story.operate("drain")
        story.until("the end of the run", lambda run: run["state"] == "finished")
        details.append(f"{story.output.rows()} rows committed")


def compare(story: Story) -> int:
    """Compares the output with the result of plain Spark, row for row. Returns the number of windows."""
    with story.phase("compare with plain Spark, row for row") as details:
        _check_foreign_files(story)
        leftovers = story.output.leftovers(f"{story.children.environment.storage}/{story.job['id']}")
        if leftovers:
            raise StoryFailed(f"left behind: {', '.join(leftovers)}")
        if story.late:
            raise StoryFailed(f"{story.late} records were late")
        comparison = story.children.oracle(story.output.folder)
        _check_visible_names(story, [str(name) for name in comparison["files"]])
        if comparison["missing"] or comparison["unexpected"]:
            rows = "\n".join(str(row) for row in comparison["differences"])
            raise StoryFailed(
                f"{comparison['missing']} rows are missing, {comparison['unexpected']} rows are unexpected:\n{rows}"
            )
        if comparison["records"] != RECORDS:
            raise StoryFailed(f"the expected result covers {comparison['records']} records, not {RECORDS}")
        details.append(f"{comparison['committed']} rows are equal")
        return int(comparison["committed"])


def batch(story: Story) -> None:
    """Runs the same pipeline over the same files in BATCH mode, as a Spark plan."""
    with story.phase("run the pipeline in BATCH and compare, row for row") as details:
        output = Path(f"{story.output.folder}-batch")
        output.mkdir()
        params = {"flights_dir": str(story.flights), "output_dir": str(output), "bounded": True}
        body = {"parallelism": 2, "params": params, "settings": {"execution_mode": "batch"}}
        job = story.api.post("jobs/", {"name": f"{story.job['name']}, BATCH", "pipeline": "flights"})
        story.api.ready_version(int(job["id"]), body, STEP_TIMEOUT_S)
        story.api.operate(int(job["id"]), "start", {}, STEP_TIMEOUT_S)
        story.run_id = int(story.api.latest_run(int(job["id"]))["id"])
        story.until("the end of the run", lambda run: run["state"] == "finished")
        streamed, planned = story.output.rows_by_value(), Output(output, str(job["id"])).rows_by_value()
        if streamed != planned:
            only = {"STREAMING": streamed - planned, "BATCH": planned - streamed}
            lines = [f"only {mode}: {row}" for mode, rows in only.items() for row in rows]
            raise StoryFailed("\n".join([f"{len(lines)} rows differ between the modes:", *lines[:20]]))
        details.append(f"{planned.total()} rows are equal")


# ---------------------------------------------------------------- observations


def _complete_counts(counts: dict[str, RecordCounts]) -> dict[str, RecordCounts] | None:
    """`counts` if its numbers of written records are complete, else None: Spark's log lags behind."""
    row_counts = {"input weather": WEATHER_WRITTEN, "input history": RECORDS}
    return (
        counts if all(counts.get(name, RecordCounts()).written >= rows for name, rows in row_counts.items()) else None
    )


def _at_least(rows: list[Row], count: int) -> list[Row] | None:
    return rows if len(rows) >= count else None


def _slots(run: Row) -> list[Row]:
    slots: list[Row] = (run["live"] or {}).get("slots", []) if run["state"] == "running" else []
    return slots


def _is_claimed_again(run: Row, before: Row) -> bool:
    """Whether another worker has claimed the run. A lost lease raises the token as well, but leaves the run queued."""
    return int(run["token"]) > int(before["token"]) and run["state"] != "queued"


def _worker_above(pid: int) -> ProcessId:
    """The Celery worker that a slot descends from.

    The job master is not included: it must detect by itself that its supervisor is gone.
    """
    worker = next((process for each in ancestors(pid) if _is_worker(each) and (process := ProcessId.of(each))), None)
    if worker is None:
        raise StoryFailed(f"pid {pid} has no Celery worker among its ancestors: is the run on another machine?")
    return worker


def _is_worker(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().lower()
    return b"celery" in words and b"worker" in words


def _check_visible_names(story: Story, names: list[str]) -> None:
    """Checks that readers see only committed files of this job, and the foreign Parquet file."""
    hidden = [name for name in names if name[0] in "._"]
    foreign = story.output.misnamed_files()
    if hidden or foreign:
        raise StoryFailed(f"readers see uncommitted or foreign files: {', '.join([*hidden, *foreign])}")


def _check_foreign_files(story: Story) -> None:
    harmed = story.output.changed_foreign_files()
    if harmed:
        raise StoryFailed(f"foreign files were changed or removed: {', '.join(harmed)}")


def restarts(story: Story) -> int:
    """Number of restarts: the attempts of all runs, without the first attempt of each run."""
    runs = story.api.all(f"jobs/{story.job['id']}/runs/")
    return sum(len(story.api.run(int(run["id"]))["attempts"]) - 1 for run in runs)
