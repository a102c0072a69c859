"""The order of the demo's steps: all of them without a user, or a job for a user to explore."""

from __future__ import annotations

import os
import signal
import sys
from datetime import datetime
from typing import Final, NoReturn

from tqdm import tqdm

from examples.demo import steps
from examples.demo.api import Api
from examples.demo.children import Children, OracleFailed
from examples.demo.output import Output
from examples.demo.steps import RECORDS, STEP_TIMEOUT_S, Story, StoryFailed
from examples.environment import Environment
from weir.control.console import ConsoleError

STEP_COUNT: Final = 14
SLOW_FEED_S: Final = 1200.0  #: feeding time of the year; long enough for all kills on a slow machine
FINAL_RUN_STATES: Final = {"finished", "stopped", "canceled", "failed"}
BAR_FORMAT: Final = "{desc} |{bar:20}| {n}/{total} [{elapsed}] {postfix}"


def run_steps(story: Story) -> str:
    """Runs all steps. Returns the final line of output.

    Raises:
        StoryFailed, ConsoleError, OracleFailed: a step failed.
    """
    story.children.feeder(story.flights, SLOW_FEED_S)
    steps.start(story, 2)
    steps.three_checkpoints(story)
    steps.look_inside(story)
    steps.check_spark_counts(story)
    steps.savepoint(story)
    steps.kill_slot(story)
    steps.kill_worker(story)
    checkpoint = steps.stop(story)
    steps.restore(story, checkpoint, 3)
    steps.feed_the_rest(story)
    steps.drain(story)
    windows = steps.compare(story)
    checkpoints, restarts = len(story.completed_checkpoints()), steps.restarts(story)
    steps.batch(story)
    return f"demo: exact, {RECORDS} records, {windows} windows, {checkpoints} checkpoints, {restarts} restarts"


def explore(story: Story, environment: Environment, seconds: float) -> None:
    """Starts and feeds the job until Ctrl-C."""
    story.children.feeder(story.flights, seconds)
    steps.start(story, 2)
    steps.check_spark_counts(story)
    story.bar.close()
    print(f"\n{table(story)}")
    print(
        f"\nThe job runs: {environment.url}/jobs/{story.job['id']}/\n"
        f"User {environment.user}, password {environment.password}\n\n"
        "Try: a savepoint · kill -9 of a slot · stop, then restore at another parallelism · drain.\n"
        f"The year of flights takes {seconds:.0f} s; the output grows in {story.output.folder}.\n"
        "Ctrl-C ends the feeder.\n",
        flush=True,
    )
    signal.pause()


def table(story: Story) -> str:
    """The steps so far with start time and duration."""
    head = f"{'at':>9} {'took':>8}  step"
    return "\n".join([head, *(f"{step.at_s:7.1f} s {step.took_s:6.1f} s  {step.what}" for step in story.results)])


def define(api: Api, environment: Environment, children: Children, bar: tqdm[NoReturn]) -> Story:
    """Creates a job with its folders and a compiled version."""
    name = f"flights {datetime.now().astimezone():%Y-%m-%d %H:%M:%S}"
    description = "The demo: a year of flights, joined, windowed, exactly once."
    job = api.post("jobs/", {"name": name, "pipeline": "flights", "description": description})
    root = environment.var / "demo" / f"job-{job['id']}"
    flights, output = root / "in", root / "out"
    for folder in (flights, output):
        folder.mkdir(parents=True)
    story = Story(api, children, job, flights, Output(output, str(job["id"])), bar)
    with story.phase("define the job") as details:
        params = {"flights_dir": str(flights), "output_dir": str(output)}
        body = {"parallelism": 2, "params": params, "settings": {"checkpoint_interval_ms": 2000}}
        version = api.ready_version(int(job["id"]), body, STEP_TIMEOUT_S)
        details.append(f"job {job['id']}, version {version['number']}")
    return story


def _run(story: Story, environment: Environment, ends: bool, seconds: float) -> int:
    """Runs the demo and prints its result. Returns the exit code."""
    try:
        if not ends:
            explore(story, environment, seconds)
            return 0
        last_line = run_steps(story)
    except (StoryFailed, ConsoleError, OracleFailed) as failure:
        story.bar.close()
        print(f"\n{table(story)}\n\ndemo: {failure}\nlogs: {environment.var / 'log'}", flush=True)
        _give_up(story)
        return 1
    except KeyboardInterrupt:
        return 130 if ends else 0
    story.bar.close()
    print(f"\n{table(story)}\n", flush=True)
    if story.too_slow:
        print(f"demo: the result is exact, but {', and '.join(story.too_slow)}; load average {os.getloadavg()[0]:.1f}")
        return 1
    print(last_line, flush=True)
    return 0


def _give_up(story: Story) -> None:
    """Cancels the run after a failure, so that it does not continue unattended."""
    try:
        runs = story.api.all(f"jobs/{story.job['id']}/runs/")
        if any(run["state"] not in FINAL_RUN_STATES for run in runs):
            story.operate("cancel")
    except ConsoleError as refusal:
        print(f"demo: the run was not cancelled: {refusal}")


def play(environment: Environment, *, ends: bool, seconds: float) -> int:
    """Runs the demo on a running stack. Returns the exit code.

    Args:
        ends: run and check all steps; else start and feed the job until Ctrl-C.
        seconds: time to feed the year, without `ends`.
    """
    try:
        api = Api.login(environment.url, environment.user, environment.password)
    except ConsoleError as refusal:
        print(f"demo: {refusal}", file=sys.stderr)
        return 2
    bar: tqdm[NoReturn] = tqdm(total=STEP_COUNT if ends else 3, bar_format=BAR_FORMAT, disable=None)
    with Children(environment) as children, bar:
        return _run(define(api, environment, children, bar), environment, ends, seconds)
