"""`from_spark_stream` on the whole stack: a folder that `spark.readStream` watches, counted exactly whatever is killed.

One unbounded word count runs through all tests. Each one kills something while text is fed, and waits until the
committed counts are those of everything fed so far: an epoch that was lost or read twice would show in them for ever.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance import standing_stage
from tests.acceptance.standing_stage import stage, stage_pid
from tests.acceptance.test_kill_dash_nine import master_pid
from tests.acceptance.word_count import PATIENCE_S, WordCount
from tests.stack.checkout import Checkout
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def words(checkout: Checkout, tmp_path_factory: pytest.TempPathFactory) -> WordCount:
    words = WordCount(checkout, tmp_path_factory.mktemp("words"), "spark-words", pipeline="spark_wordcount")
    until(words.is_exact, PATIENCE_S)
    return words


def folder(words: WordCount) -> Path:
    (streams,) = (words.checkout.var / "inputs" / str(words.run["job"]) / "streams").iterdir()
    return streams / "lines"


def newest_epoch(epochs: Path) -> int:
    return max((int(path.name) for path in epochs.glob("[0-9]*")), default=-1)


def pid_of_stage(words: WordCount) -> int:
    return stage_pid(words, "stream", "spark_wordcount", "lines")


def kill_when(words: WordCount, epoch: Callable[[], int | None]) -> int:
    return standing_stage.kill_when(words, lambda: pid_of_stage(words), epoch)


def survive(words: WordCount) -> None:
    """The stage must stand again, and what is fed meanwhile be counted once."""
    words.feed(5)
    until(lambda: stage(words)["state"] == "running", PATIENCE_S)
    words.feed(5)
    until(words.is_exact, PATIENCE_S)


def test_the_stage_stands_beside_the_run_and_reports(words: WordCount) -> None:
    def figure(label: str) -> float:
        """0 if the stage does not know it yet."""
        figures = (stage(words)["live"] or {}).get("figures", [])
        return next((figure["value"] or 0 for figure in figures if figure["label"] == label), 0)

    until(lambda: stage(words)["state"] == "running", PATIENCE_S)
    until(lambda: figure("Epochs written") > 0 and figure("Batch duration") > 0, PATIENCE_S)
    until(lambda: figure("Epochs to read") == 0, PATIENCE_S)


def test_sigkill_of_the_stage_before_the_rename(words: WordCount) -> None:
    """What it had written aside is no epoch; the batch comes again."""
    token, epochs = stage(words)["token"], folder(words) / "epochs"

    def aside() -> int | None:
        folders = [path for path in epochs.glob(f".*-{token}") if any(path.glob("*.parquet"))]
        return int(folders[0].name[1:].partition("-")[0]) if folders else None

    epoch = kill_when(words, aside)
    assert newest_epoch(epochs) < epoch
    until(lambda: newest_epoch(epochs) >= epoch, PATIENCE_S)
    survive(words)
    assert stage(words)["token"] > token
    assert stage(words)["deaths"] > 0


@pytest.mark.long
def test_sigkill_of_the_stage_after_the_rename(words: WordCount) -> None:
    """The epoch stays as it is; Spark repeats its batch, which is skipped."""
    commits, epochs = folder(words) / "spark/commits", folder(words) / "epochs"

    def uncommitted() -> int | None:
        epoch = newest_epoch(epochs)
        return epoch if epoch >= 0 and not (commits / str(epoch)).exists() else None

    epoch = kill_when(words, uncommitted)
    written = {path.name: path.stat().st_mtime_ns for path in (epochs / f"{epoch:012}").iterdir()}
    assert written
    until(lambda: (commits / str(epoch)).exists() or newest_epoch(epochs) > epoch, PATIENCE_S)
    epoch_folder = epochs / f"{epoch:012}"
    if epoch_folder.exists():  # no checkpoint has passed it yet
        assert {path.name: path.stat().st_mtime_ns for path in epoch_folder.iterdir()} == written
    survive(words)


@pytest.mark.long
def test_sigkill_of_its_worker_and_of_the_job_master_at_once(words: WordCount) -> None:
    owner, token = stage(words)["lease_owner"], words.run["token"]
    words.feed(3)
    os.kill(int(owner.split(":")[1]), signal.SIGKILL)
    os.kill(master_pid(words), signal.SIGKILL)
    until(lambda: words.run["token"] > token and stage(words)["lease_owner"] not in ("", owner), PATIENCE_S)
    survive(words)


@pytest.mark.long
def test_epochs_go_once_no_retained_checkpoint_needs_them(words: WordCount) -> None:
    """A savepoint keeps those that a restore from it reads."""
    epochs = folder(words) / "epochs"
    words.api.operate(words.job, "savepoint", {}, PATIENCE_S)
    oldest = min(int(path.name) for path in epochs.glob("[0-9]*"))
    words.feed(5)
    until(words.is_exact, PATIENCE_S)
    before = words.newest_checkpoint()
    until(lambda: words.newest_checkpoint() > before + 7, PATIENCE_S)
    numbers = sorted(int(path.name) for path in epochs.glob("[0-9]*"))
    assert oldest >= 0
    assert len(numbers) < newest_epoch(epochs) + 1, "some have been released"


def test_stop_and_restore_at_another_parallelism(words: WordCount) -> None:
    """The stage ends with the run, and goes on with the next one where it was."""
    words.feed(3)
    words.api.operate(words.job, "stop", {}, PATIENCE_S)
    until(lambda: stage(words)["state"] == "ended", PATIENCE_S)
    assert not pid_of_stage(words)
    words.feed(5)
    savepoint = words.api.checkpoints(words.job)[-1]
    words.api.operate(words.job, "restore", {"checkpoint": savepoint["id"], "parallelism": 3}, PATIENCE_S)
    survive(words)
    words.api.operate(words.job, "drain", {}, PATIENCE_S)
    assert words.run["state"] == "finished"
    assert words.is_exact()
