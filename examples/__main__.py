"""`python -m examples demo | prepare | feed | check`: the demo, and the sample data of the example pipelines.

python -m examples demo                  starts a stack and a job, and feeds the job, for a user to explore
python -m examples demo --exit           all steps without a user; exits with 0 only if the result is exact
python -m examples prepare enrichment    creates folders and tables of an example
python -m examples feed clickstream      writes the input of an example
python -m examples check clickstream     compares the output of an example with a DuckDB query
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.database import NoDatabase
from examples.demo import story
from examples.environment import Environment, NoStack
from examples.samples import commands
from stack.settings import ROOT


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    arguments.var = (arguments.var or Path(os.environ.get("WEIR_VAR") or "var")).resolve()
    try:
        return int(arguments.command(arguments))
    except (NoStack, NoDatabase) as refusal:
        sys.stderr.write(f"{refusal}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples", description=__doc__.splitlines()[0])
    parser.add_argument("--var", type=Path, help="the stack's data folder (default: $WEIR_VAR, else var)")
    verbs = parser.add_subparsers(required=True)
    demo = verbs.add_parser("demo", help="run the flights job, on the running stack or on a new one")
    demo.add_argument("--exit", action="store_true", help="run and check all steps without a user, then exit")
    demo.add_argument("--seconds", type=float, default=600.0, help="without --exit: time to feed the year")
    demo.set_defaults(command=_demo)
    for name, command, text in (
        ("prepare", commands.prepare, "create the folders and tables of an example"),
        ("feed", commands.feed, "write the input of an example"),
        ("check", commands.check, "compare the output of an example with a DuckDB query"),
    ):
        verb = verbs.add_parser(name, help=text)
        verb.add_argument("example", choices=sorted(commands.SAMPLES))
        verb.set_defaults(command=_sample, action=command)
        if name == "feed":
            verb.add_argument("--seconds", type=float, default=30.0, help="time over which the input is written")
    return parser


def _sample(arguments: argparse.Namespace) -> int:
    """Runs a command of `samples` with the variables of the stack."""
    environment = Environment.read(arguments.var)
    os.environ.update(environment.variables)
    options = {"seconds": arguments.seconds} if "seconds" in arguments else {}
    return int(arguments.action(environment, arguments.example, **options))


def _demo(arguments: argparse.Namespace) -> int:
    """Runs the demo on the running stack, or on a new stack that ends with the demo.

    After a failure without `--exit` the stack stays, so that the user can look at it.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    was_up = _stack(arguments.var, "status", is_quiet=True) == 0
    code = 130
    try:
        if (code := _stack(arguments.var, "up")) == 0:
            code = story.play(Environment.read(arguments.var), ends=arguments.exit, seconds=arguments.seconds)
    except KeyboardInterrupt:
        code = 130 if arguments.exit else 0
    finally:
        if not was_up and (arguments.exit or code == 0):
            _stack(arguments.var, "down", is_quiet=True)
    return code


def _stack(var: Path, command: str, *, is_quiet: bool = False) -> int:
    """Runs a command of the stack. Returns its exit code. A new stack keeps Spark's event log, which the demo reads."""
    environment = {"WEIR_SPARK_EVENT_LOG": str(var / "spark-events"), **os.environ}
    argv = [sys.executable, "-m", "stack", "--var", str(var), command]
    sink = subprocess.DEVNULL if is_quiet else None
    return subprocess.run(argv, cwd=ROOT, env=environment, stdout=sink, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
