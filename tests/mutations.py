"""Mutations of production code under which the tests of a requirement fail: evidence that these tests can fail.

`mutations.toml` names for each mutation the lines of `docs/requirements.md`, a file, a text in it that occurs once, its
replacement, and the tests. `python -m tests.mutations S2-07 …` runs those of these lines, without arguments all. A
mutation is applied to a copy of the checkout, never to the checkout itself. Tests that run on threads and on Spark run
on threads, where they take seconds, or with `--spark` on Spark.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.requirements import ids_in

ROOT: Final = Path(__file__).parent.parent
TABLE: Final = Path(__file__).with_suffix(".toml")
SKIPPED: Final = shutil.ignore_patterns(".*", "var", "build", "docs", "benchmarks", "__pycache__", "*.egg-info")
PATIENCE: Final = "PATIENCE_S = 120.0"  #: of `tests.jobs.live`; a mutated job may hang
SUMMARY: Final = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+)(?:\[.*?\])?(?: - (.*))?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A change of one text. `tests`: node ids without parameters. `spark`: they run on Spark only."""

    lines: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    spark: bool = False
    ci: bool = False  #: run by `tests/test_mutations.py`

    @property
    def ids(self) -> list[str]:
        return ids_in(self.lines)


def mutations() -> list[Mutation]:
    """Of the table, in its order."""
    rows = tomllib.loads(TABLE.read_text())["mutation"]
    return [Mutation(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def copy_checkout(folder: Path, *, on_spark: bool = False) -> Path:
    """A copy of the code in `folder`. Its jobs wait less, except on Spark, where a first job may start slowly."""
    shutil.copytree(ROOT, folder, ignore=SKIPPED, dirs_exist_ok=True)
    live = folder / "tests/jobs/live.py"
    if not on_spark:
        live.write_text(live.read_text().replace(PATIENCE, "PATIENCE_S = 45.0"))
    return folder


def failures(mutation: Mutation, checkout: Path, *, on_spark: bool = False) -> dict[str, str]:
    """The tests of `mutation` that fail in `checkout`, a copy, once it is applied; with what pytest says of each.

    Raises:
        ValueError: the text does not occur once; the error names the file.
        RuntimeError: no test ran, as where a module cannot be imported.
    """
    path = checkout / mutation.file
    original = path.read_text()
    if original.count(mutation.before) != 1:
        raise ValueError(f"{mutation.file}: not once there: {mutation.before!r}")
    path.write_text(original.replace(mutation.before, mutation.after))
    try:
        marked = "spark" if on_spark or mutation.spark else "not spark"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marked]
        environment = os.environ | {"COLUMNS": "300"}  # else the summary has no reasons
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each slot would compile all modules
        done = subprocess.run(
            [*command, *mutation.tests], cwd=checkout, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        path.write_text(original)
    if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"{mutation.lines}: pytest ended with {done.returncode}: {done.stdout[-2_000:]}")
    reasons: dict[str, str] = {}
    for test, reason in SUMMARY.findall(done.stdout):
        reasons.setdefault(test, reason)
    return reasons


def run(selected: Sequence[Mutation], *, on_spark: bool) -> Iterator[tuple[Mutation, str, str | None]]:
    """Each mutation with each of its tests, and why that failed; None: it did not."""
    with tempfile.TemporaryDirectory() as folder:
        checkout = copy_checkout(Path(folder), on_spark=on_spark)
        for mutation in selected:
            reasons = failures(mutation, checkout, on_spark=on_spark)
            for test in mutation.tests:
                yield mutation, test, reasons.get(test)


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 if a test passed under its mutation."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("ids", nargs="*", help="lines of docs/requirements.md; none: all")
    parser.add_argument("--spark", action="store_true", help="run the tests on Spark")
    options = parser.parse_args(arguments)
    selected = [mutation for mutation in mutations() if not options.ids or set(options.ids) & set(mutation.ids)]
    survived = 0
    for mutation, test, reason in run(selected, on_spark=options.spark):
        survived += reason is None
        outcome = "PASSED, but should fail" if reason is None else f"failed: {reason[:120]}"
        sys.stdout.write(f"{mutation.lines}: {test}: {outcome}\n")
        sys.stdout.flush()
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
