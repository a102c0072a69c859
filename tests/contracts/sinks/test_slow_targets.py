"""Targets that answer slowly: while rows are prepared, and while a checkpoint is committed.

A server answers late: its proxy holds back answers, so a request may have been served. A folder lies on a disk that is
frozen. A checkpoint whose rows are being prepared expires as declared. A recorded checkpoint does not expire: the next
one waits for its commit. The job goes on when the target answers again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.contracts.sinks.disks import freezable_disk
from tests.contracts.sinks.holds import held
from tests.contracts.sinks.processes import running
from tests.contracts.sinks.run_files import failed_checkpoints_in
from tests.contracts.sinks.runs import await_checkpoints, await_failed_checkpoint, check, log_of, release, spec_of
from tests.contracts.sinks.targets import TARGETS, NewTarget, Target

pytestmark = pytest.mark.slow
SLOW: Final = [kind for kind in TARGETS if "slow" not in kind.without]
TIMEOUT_MS: Final = 1_000  #: of a checkpoint that expires while the target prepares rows
LONGER_TIMEOUT_MS: Final = 2_500  #: of a target without such a checkpoint: none may expire, also on a busy machine
RAW_ERROR: Final = re.compile(r"Traceback|TimeoutError|KafkaException|psycopg\.|OperationalError")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with freezable_disk(tmp_path / "disk") as folder:
        yield folder


@pytest.mark.parametrize("kind", SLOW, ids=lambda kind: kind.__name__)
def test_a_slow_target_delays_checkpoints_and_gets_every_row_once(
    new_target: NewTarget, disk: Path, kind: type[Target]
) -> None:
    """S1-40: a checkpoint that takes too long expires as declared; output that was prepared rides on."""
    target = new_target(kind, disk)
    timeout_ms = TIMEOUT_MS if target.prepares_there else LONGER_TIMEOUT_MS
    spec = replace(spec_of(target), waits=True, attempts=0, timeout_ms=timeout_ms)
    with running(spec) as job:
        await_checkpoints(target, job, 2)
        for point in ("before-prepare", "before-commit") if target.prepares_there else ("before-commit",):
            with ExitStack() as stack:
                with held(target.place.job, point, lambda: log_of(target)):
                    stack.enter_context(target.stalled())
                if point == "before-prepare":
                    await_failed_checkpoint(target)
                else:
                    time.sleep(timeout_ms / 1_000 + 0.5)
            await_checkpoints(target, job, 1)
        release(target)
        assert job.wait() == 0, log_of(target)
    check(target)
    failed = failed_checkpoints_in(target.place.job / "run")
    assert ("expired" in failed) == target.prepares_there, failed
    assert not RAW_ERROR.search(log_of(target)), log_of(target)
