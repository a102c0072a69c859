"""The demo: a job processes a year of flights exactly once, although its processes are killed.

    python -m stack.demo_story           start the job and feed it, for a user to explore
    python -m stack.demo_story --exit    all steps without a user; exits with 0 only if the result is exact

The demo needs a running stack (`make up`), which it controls only by REST, signals and files.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NoReturn

from tqdm import tqdm

from stack import demo_steps as steps
from stack.demo_api import Api, ApiRefused
from stack.demo_children import Children, Environment, NoStack, OracleFailed
from stack.demo_output import Output
from stack.demo_steps import RECORDS, STEP_TIMEOUT_S, Story, StoryFailed

STEP_COUNT: Final = 14
SLOW_FEED_S: Final = 1200.0  #: feeding time of the year; long enough for all kills on a slow machine
FINAL_RUN_STATES: Final = {"finished", "stopped", "canceled", "failed"}
BAR_FORMAT: Final = "{desc} |{bar:20}| {n}/{total} [{elapsed}] {postfix}"


def run_steps(story: Story) -> str:
    """Runs all steps. Returns the final line of output.

    Raises:
        StoryFailed, ApiRefused, OracleFailed: a step failed.
    """
    story.children.feeder(story.flights, SLOW_FEED_S)
    steps.start(story, 2)
    steps.three_checkpoints(story)
    steps.look_inside(story)
    steps.check_spark_counts(story)
    steps.savepoint(story)
    steps.kill_slot(story)
    steps.kill_worker(story)
    taken = steps.stop(story)
    steps.restore(story, taken, 3)
    steps.feed_the_rest(story)
    steps.drain(story)
    windows = steps.compare(story)
    checkpoints, restarts = len(story.completed_checkpoints()), steps.restarts(story)
    steps.batch(story)
    return f"demo: exact, {RECORDS} records, {windows} windows, {checkpoints} checkpoints, {restarts} restarts"


def play(story: Story, environment: Environment, seconds: float) -> None:
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
    with story.phase("define the job") as told:
        params = {"flights_dir": str(flights), "output_dir": str(output)}
        body = {"parallelism": 2, "params": params, "settings": {"checkpoint_interval_ms": 2000}}
        version = api.ready_version(int(job["id"]), body, STEP_TIMEOUT_S)
        told.append(f"job {job['id']}, version {version['number']}")
    return story


def run_demo(story: Story, environment: Environment, arguments: argparse.Namespace) -> int:
    """Runs the demo and prints its result. Returns the exit code."""
    try:
        if not arguments.exit:
            play(story, environment, arguments.seconds)
            return 0
        last_line = run_steps(story)
    except (StoryFailed, ApiRefused, OracleFailed) as failure:
        story.bar.close()
        print(f"\n{table(story)}\n\ndemo: {failure}\nlogs: {environment.var / 'log'}", flush=True)
        _give_up(story)
        return 1
    except KeyboardInterrupt:
        return 130 if arguments.exit else 0
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
    except ApiRefused as refusal:
        print(f"demo: the run was not cancelled: {refusal}")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        environment = Environment.read(arguments.var)
        api = Api.login(environment.url, environment.user, environment.password)
    except (NoStack, ApiRefused) as refusal:
        print(f"demo: {refusal}", file=sys.stderr)
        return 2
    bar: tqdm[NoReturn] = tqdm(total=STEP_COUNT if arguments.exit else 3, bar_format=BAR_FORMAT, disable=None)
    with Children(environment) as children, bar:
        return run_demo(define(api, environment, children, bar), environment, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stack.demo_story", description=__doc__.splitlines()[0])
    parser.add_argument("--exit", action="store_true", help="run and check all steps without a user, then exit")
    parser.add_argument("--var", type=Path, help="the stack's data folder (default: $WEIR_VAR, else var)")
    parser.add_argument("--seconds", type=float, default=600.0, help="without --exit: time to feed the year")
    return parser


if __name__ == "__main__":
    sys.exit(main())
