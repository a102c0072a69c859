"""The job master commits each recorded checkpoint as a whole: the commit log of a job that fails and restarts."""

import errno
from pathlib import Path
from typing import Any

import pytest

from runtime import durable
from runtime.connectors import commit_log
from runtime.connectors.commit_log import CommitLog
from runtime.core.job.restart_strategy import ExponentialDelay, FixedDelay
from runtime.master.output_commit import COMMIT_PAUSES_S
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import running
from tests.jobs.numbers import committed, counts, expected_counts, final_counts


def check_log(output: Path) -> int:
    """Every visible file is in one epoch. Returns how many epochs there are."""
    log = CommitLog(output)
    ((job, sink),) = log.sinks()
    epochs = log.epochs(job, sink)
    names = [file.name for epoch in epochs for file in epoch.files]
    assert len(names) == len(set(names))
    assert set(names) == {path.name for path in output.glob("part-*")}
    assert [epoch.number for epoch in epochs] == list(range(1, len(epochs) + 1))
    return len(epochs)


def test_every_file_is_in_one_epoch_over_restarts(tmp_path: Path) -> None:
    bomb, source, output = Bomb(), Gated(total=40), tmp_path / "out"
    restart = FixedDelay(attempts=9, delay_ms=0)
    with running(counts(source, output, bomb).compile(2), tmp_path / "state", restart=restart) as run:
        for token in (2, 3):
            run.checkpoints(2)
            bomb.arm()
            source.total += 20
            run.wait_for(lambda token=token: run.records.token == token)  # type: ignore[misc]
        run.checkpoints(1)
        run.wait_for(lambda: final_counts(output) == expected_counts(source.numbers))
        run.end("drain")
    assert final_counts(output) == expected_counts(source.numbers)
    assert check_log(output) >= 3


def test_a_log_that_cannot_be_written_is_an_outage_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry of a recorded checkpoint fails in the attempt, at each repetition, and once in the restore."""
    soon = ExponentialDelay(initial_ms=20, max_ms=40, reset_after_ms=60_000)
    source, output, rename = Gated(total=40), tmp_path / "out", durable.rename_without_replacing
    left = [len(COMMIT_PAUSES_S) + 3]  # a commit with its repetitions, a restore

    def failing(temporary: Any, entry: Any) -> None:
        left[0] -= 1
        if 0 < left[0] < len(COMMIT_PAUSES_S) + 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(entry))
        rename(temporary, entry)

    monkeypatch.setattr(commit_log, "rename_without_replacing", failing)
    with running(counts(source, output).compile(2), tmp_path / "state", outage_backoff=soon) as run:
        run.wait_for(lambda: left[0] < 1)
        source.total += 20
        run.wait_for(lambda: len(committed(output)) > 0 and final_counts(output) == expected_counts(source.numbers))
        run.end("drain")
    assert run.records.token == 3, "two attempts have failed"
    assert final_counts(output) == expected_counts(source.numbers)
    assert check_log(output) >= 1


def test_a_commit_that_fails_is_repeated_within_the_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short outage of the target costs a pause, not a restart."""
    source, output, rename, failures = Gated(total=40), tmp_path / "out", durable.rename_without_replacing, [2]

    def failing(temporary: Any, entry: Any) -> None:
        failures[0] -= 1
        if failures[0] >= 0:
            raise OSError(errno.ENOSPC, "No space left on device", str(entry))
        rename(temporary, entry)

    monkeypatch.setattr(commit_log, "rename_without_replacing", failing)
    with running(counts(source, output).compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: failures[0] < 0)
        run.end("drain")
    assert run.records.token == 1, "no attempt has failed"
    assert final_counts(output) == expected_counts(source.numbers)
