"""Servers that end a session or a transaction of a running job, between its steps and within its commits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.contracts.sinks.processes import running
from tests.contracts.sinks.runs import await_checkpoints, check, failing_job, log_of, release, spec_of
from tests.contracts.sinks.targets import TARGETS, NewTarget, Target

pytestmark = pytest.mark.slow
HARMLESS: Final = [kind for kind in TARGETS if "" in kind.expiries.values()]
LOSSES: Final = [(kind, name) for kind in TARGETS for name, pattern in kind.expiries.items() if pattern]


@pytest.mark.parametrize("kind", HARMLESS, ids=lambda kind: kind.__name__)
def test_rows_survive_what_the_server_ends(new_target: NewTarget, tmp_path: Path, kind: type[Target]) -> None:
    """S1-03: rows of a session that is gone are written again, and a commit in doubt is repeated."""
    target = new_target(kind, tmp_path)
    with running(replace(spec_of(target), waits=True)) as job:
        for name, pattern in kind.expiries.items():
            if not pattern:
                await_checkpoints(target, job, 2)
                target.expire(name)
        release(target)
        assert job.wait() == 0, log_of(target)
    check(target)


@pytest.mark.parametrize(("kind", "name"), LOSSES, ids=lambda each: getattr(each, "__name__", each))
def test_prepared_rows_that_the_server_drops_end_the_job_by_name(
    new_target: NewTarget, tmp_path: Path, kind: type[Target], name: str
) -> None:
    """Never lost in silence; the error names connector, object and remedy."""
    target = new_target(kind, tmp_path)
    with failing_job(target, kind.expiries[name], attempts=1):
        target.expire(name)
