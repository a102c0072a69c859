"""`EpochStage` on the whole stack: words per epoch in Postgres and in a Parquet table, exact whatever is killed.

One unbounded job runs through all tests. Each one kills something while text is fed, and waits until both targets hold
the words of everything fed so far: a lost epoch would leave them too low for ever, a repeated one too high.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest

from runtime.connectors.commit_log import CommitLog
from tests.acceptance import standing_stage
from tests.acceptance.standing_stage import stage, stage_pid
from tests.acceptance.test_kill_dash_nine import comes_back, master_pid
from tests.acceptance.word_count import PATIENCE_S, WordCount
from tests.stack.checkout import Checkout
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

SCHEMA = "epoch_target"


class Tables(WordCount):
    """The job, and both of its targets."""

    def __init__(self, checkout: Checkout, folder: Path) -> None:
        self.url = checkout.variables()["DATABASE_URL"]
        self.execute(f"CREATE SCHEMA {SCHEMA}; CREATE TABLE {SCHEMA}.words (word text, count bigint)")
        table: dict[str, Any] = {"database_url": self.url, "table": f"{SCHEMA}.words"}
        super().__init__(checkout, folder, name="tables", pipeline="word_table", **table)

    def execute(self, query: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    @property
    def committed(self) -> Counter[str]:
        rows = self.execute(f"SELECT word, sum(count)::bigint FROM {SCHEMA}.words GROUP BY word")
        return Counter(dict(rows))

    @property
    def in_parquet(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for path in self.output.glob("part-*.parquet"):
            for row in pq.read_table(path).to_pylist():
                counts[row["word"]] += row["count"]
        return counts

    def is_exact(self) -> bool:
        return self.committed == self.fed == self.in_parquet

    @cached_property
    def log(self) -> CommitLog:
        """The commit log between run and stage; looked up once, since a poll of a short moment must not ask the API."""
        (lineage,) = (self.checkout.var / "inputs" / str(self.run["job"]) / "streams").iterdir()
        return CommitLog(lineage / "tables")

    @property
    def delivered(self) -> int:
        return max((self.log.delivered_epoch(job, sink) for job, sink in self.log.sinks()), default=0)

    def is_recorded_only(self) -> bool:
        """Whether Postgres has recorded an epoch that is not released. The older fact is read first."""
        delivered = self.delivered
        (row,) = self.execute(f"SELECT coalesce(max(epoch), 0) FROM {SCHEMA}.weir_epochs")
        return int(row[0]) > delivered

    def is_staged(self) -> bool:
        """Whether an epoch is on its way: its staging table is there, with rows."""
        where = f"WHERE schemaname = '{SCHEMA}' AND tablename LIKE 'weir_staging%'"
        for (table,) in self.execute(f"SELECT tablename FROM pg_tables {where}"):
            try:
                return bool(self.execute(f"SELECT count(*) > 0 FROM {SCHEMA}.{table}")[0][0])
            except psycopg.errors.UndefinedTable:
                return False
        return False


@pytest.fixture(scope="module")
def words(checkout: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    tables = Tables(checkout, tmp_path_factory.mktemp("tables"))
    until(tables.is_exact, PATIENCE_S)
    return tables


def kill_when(words: Tables, is_so: Callable[[], bool]) -> None:
    standing_stage.kill_when(
        words, lambda: stage_pid(words, "deliver", "word_table", "tables"), lambda: True if is_so() else None
    )


def survive(words: Tables) -> None:
    """The stage must stand again, and what is fed meanwhile be counted once."""
    words.feed(5)
    until(lambda: stage(words)["state"] == "running", PATIENCE_S)
    words.feed(5)
    until(words.is_exact, PATIENCE_S)


def test_the_stage_reports_and_releases_its_epochs(words: Tables) -> None:
    until(lambda: stage(words)["state"] == "running" and (stage(words)["live"] or {}).get("figures"), PATIENCE_S)
    until(lambda: figures(words)["Last epoch"], PATIENCE_S)
    assert figures(words)["Epoch duration"] > 0
    until(lambda: figures(words)["Epochs waiting"] == 0, PATIENCE_S)
    until(lambda: not list(words.log.output.glob("part-*")), PATIENCE_S)


def figures(words: Tables) -> dict[str, Any]:
    return {figure["label"]: figure["value"] for figure in (stage(words)["live"] or {}).get("figures", ())}


def test_sigkill_of_the_stage_between_staging_and_commit(words: Tables) -> None:
    kill_when(words, words.is_staged)
    survive(words)


@pytest.mark.long
def test_sigkill_of_the_stage_between_commit_and_release(words: Tables) -> None:
    kill_when(words, words.is_recorded_only)
    survive(words)


@pytest.mark.long
def test_sigkill_of_its_worker_and_of_the_job_master_at_once(words: Tables) -> None:
    owner, token = stage(words)["lease_owner"], words.run["token"]
    words.feed(3)
    os.kill(int(owner.split(":")[1]), signal.SIGKILL)
    os.kill(master_pid(words), signal.SIGKILL)
    until(lambda: words.run["token"] > token and stage(words)["lease_owner"] not in ("", owner), PATIENCE_S)
    survive(words)


@pytest.mark.long
@pytest.mark.parametrize("server", ["redis", "postgres"])
def test_sigkill_of_a_server(words: Tables, server: str) -> None:
    """Redis carries messages only. Postgres is the target, too: the stage waits, and delivers the epoch again."""
    os.kill(words.checkout.row(server)["pid"], signal.SIGKILL)
    words.feed(5)
    until(lambda: comes_back(words), PATIENCE_S)
    survive(words)


def test_a_drain_ends_when_every_epoch_is_delivered(words: Tables) -> None:
    words.feed(5)
    words.api.operate(words.job, "stop", {}, PATIENCE_S)
    savepoint = words.api.checkpoints(words.job)[-1]
    words.feed(5)
    words.api.operate(words.job, "restore", {"checkpoint": savepoint["id"], "parallelism": 1}, PATIENCE_S)
    until(words.is_exact, PATIENCE_S)
    words.api.operate(words.job, "drain", {}, PATIENCE_S)
    assert words.run["state"] == "finished"
    assert words.is_exact(), "at once: the run has waited for its stage"


def test_a_missing_table_fails_the_run_by_name(words: Tables, tmp_path: Path) -> None:
    table: dict[str, Any] = {"database_url": words.url, "table": f"{SCHEMA}.nothing"}
    other = WordCount(words.checkout, tmp_path, name="no table", pipeline="word_table", **table)
    until(lambda: other.run["state"] == "failed", PATIENCE_S)
    failure = other.run["failure"]
    assert (failure["code"], failure["operator"]) == ("missing-table", "tables")
    assert "there is no table epoch_target.nothing" in failure["message"]
    assert words.url.split(":")[2].split("@")[0] not in str(other.run), "the password of the target"
