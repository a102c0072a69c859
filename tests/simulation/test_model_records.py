"""A model of the checkpoint records against the twin in memory and the real thing in Postgres.

Masters are superseded and go on as zombies, checkpoints are recorded twice and out of order, given up and discarded.
What can be restored, what is retained and who may write is what the model says.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import psycopg
import pytest
from django.db import connection
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from console.accounts.models import User
from console.jobs.models import Job, JobVersion, Run
from runtime.core.checkpoint.effects import ReportCheckpoint
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.settings import RetentionPolicy
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import Manifest, folder_of
from runtime.io.memory.run_store import MemoryRunStore
from runtime.io.postgres.store import PostgresRunStore
from runtime.run_store import CompletedCheckpoint, RunStore
from tests.example_counts import examples

ENDING = (CheckpointKind.STOP, CheckpointKind.DRAIN)
chances = st.integers(0, 100)
kinds = st.sampled_from([CheckpointKind.CHECKPOINT] * 4 + [CheckpointKind.SAVEPOINT, *ENDING])


class Truth(ABC):
    """Where the records are. `superseding` takes a newer token and leaves the old holder a zombie."""

    @abstractmethod
    def first(self) -> tuple[RunStore, Token]: ...
    @abstractmethod
    def superseding(self) -> tuple[RunStore, Token]: ...
    def close(self) -> None:
        return


class InMemory(Truth):
    def first(self) -> tuple[RunStore, Token]:
        self._records = MemoryRunStore()
        return self._records, self._records.token

    def superseding(self) -> tuple[RunStore, Token]:
        newer = replace(self._records, token=Token(self._records.token + 1))  # shares what is written down
        self._records.superseded = True
        self._records = newer
        return newer, newer.token


class InPostgres(Truth):
    numbers = count(1)

    def first(self) -> tuple[RunStore, Token]:
        self._open: list[PostgresRunStore] = []
        user, _ = User.objects.get_or_create(username="somebody")
        job = Job.objects.create(name=f"model {next(self.numbers)}", pipeline="flights", created_by=user)
        version = JobVersion.objects.create(job=job, number=1, parallelism=2, params={}, state="ready")
        self._run = Run.objects.create(job=job, version=version, parallelism=2, state="running", token=_next_token())
        return self._records(Token(self._run.token))

    def superseding(self) -> tuple[RunStore, Token]:
        token = _next_token()
        Run.objects.filter(pk=self._run.pk).update(token=token)
        return self._records(Token(token))

    def close(self) -> None:
        for records in self._open:
            records.close()

    def _records(self, token: Token) -> tuple[RunStore, Token]:
        params = connection.get_connection_params()
        keys = ("host", "port", "user", "password", "dbname")
        url = psycopg.conninfo.make_conninfo(**{key: params[key] for key in keys if params.get(key)})
        records = PostgresRunStore(url, self._run.pk, token, 128)
        self._open.append(records)
        return records, token


def _next_token() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('weir_token_seq')")
        (token,) = cursor.fetchone()
    return int(token)


class Records(RuleBasedStateMachine):
    truth: Callable[[], Truth]

    @initialize()
    def begin(self) -> None:
        self.there = type(self).truth()
        self.records, self.token = self.there.first()
        self.zombies: list[tuple[RunStore, Token]] = []
        self.ids: list[int] = []  #: given out and not used
        self.recorded: dict[int, CompletedCheckpoint] = {}
        self.discarded: set[int] = set()

    def teardown(self) -> None:
        if hasattr(self, "there"):
            self.there.close()

    # ------------------------------------------------------------ whoever holds the token

    @rule()
    def draw_an_id(self) -> None:
        number = self.records.next_checkpoint_id()
        assert number is not None
        assert number > max([0, *self.ids, *self.recorded])
        self.ids.append(number)

    @precondition(lambda self: self.ids)
    @rule(which=chances, kind=kinds)
    def complete_a_checkpoint(self, which: int, kind: CheckpointKind) -> None:
        number = self.ids.pop(which % len(self.ids))
        self.records.report_checkpoint(begun(number, kind))
        completed = checkpoint(number, kind, self.token)
        assert self.records.record_checkpoint(completed)
        self.recorded[number] = completed

    @precondition(lambda self: self.recorded)
    @rule(which=chances)
    def record_again(self, which: int) -> None:
        """The answer was lost."""
        completed = self.some(which)
        if completed.manifest.token == self.token:
            assert self.records.record_checkpoint(completed)

    @precondition(lambda self: self.ids)
    @rule(which=chances, kind=kinds)
    def give_one_up(self, which: int, kind: CheckpointKind) -> None:
        number = self.ids.pop(which % len(self.ids))
        report = begun(number, kind)
        self.records.report_checkpoint(report)
        self.records.report_checkpoint(replace(report, at=2_000, reason=FailureReason.EXPIRED))

    @precondition(lambda self: self.recorded)
    @rule(which=chances)
    def say_late_that_it_failed(self, which: int) -> None:
        """A completed one stays completed."""
        manifest = self.some(which).manifest
        report = begun(manifest.checkpoint, manifest.kind)
        self.records.report_checkpoint(replace(report, reason=FailureReason.SUSPENDED))

    @rule(keep=st.integers(1, 3))
    def discard_beyond(self, keep: int) -> None:
        plain = [number for number in self.kept() if self.kind(number) is CheckpointKind.CHECKPOINT]
        old = set(plain[:-keep])
        discarded = self.records.discard_older(RetentionPolicy(keep))
        assert sorted(discarded) == sorted(self.recorded[number].folder for number in old)
        self.discarded |= old

    @rule()
    def begin_another_attempt(self) -> None:
        token = self.records.next_attempt("a slot died", {})
        assert token is not None
        assert token > self.token
        self.token = token

    @rule()
    def be_superseded(self) -> None:
        self.zombies.append((self.records, self.token))
        self.records, token = self.there.superseding()
        assert token > self.token
        self.token = token

    # ------------------------------------------------------------ whoever held it

    @precondition(lambda self: self.zombies)
    @rule(which=chances, kind=kinds, keep=st.integers(1, 2))
    def a_zombie_changes_nothing(self, which: int, kind: CheckpointKind, keep: int) -> None:
        zombie, token = self.zombies[which % len(self.zombies)]
        number = self.ids[0] if self.ids else 10_000
        assert zombie.next_checkpoint_id() is None
        assert not zombie.record_checkpoint(checkpoint(number, kind, token))
        assert zombie.discard_older(RetentionPolicy(keep)) == []
        assert zombie.next_attempt("late", {}) is None

    # ------------------------------------------------------------ the laws

    @invariant()
    def what_is_read_is_what_the_model_says(self) -> None:
        if not hasattr(self, "records"):
            return
        kept = [self.recorded[number].folder for number in self.kept()]
        plain = [self.recorded[n].folder for n in self.kept() if self.kind(n) is CheckpointKind.CHECKPOINT]
        final = [self.recorded[n].folder for n in self.kept() if self.kind(n) in ENDING]
        for reader in (self.records, *(zombie for zombie, _ in self.zombies[-1:])):
            assert reader.retained_folders() == kept
            assert reader.restore_point() == (plain[-1] if plain else None)
            assert reader.final_savepoint() == (final[-1] if final else None)

    # ------------------------------------------------------------ means

    def kept(self) -> list[int]:
        return sorted(set(self.recorded) - self.discarded)

    def kind(self, number: int) -> CheckpointKind:
        return self.recorded[number].manifest.kind

    def some(self, which: int) -> CompletedCheckpoint:
        return list(self.recorded.values())[which % len(self.recorded)]


def begun(number: int, kind: CheckpointKind) -> ReportCheckpoint:
    return ReportCheckpoint(CheckpointId(number), kind, 1_000, 1_000, 0, 3)


def checkpoint(number: int, kind: CheckpointKind, token: int) -> CompletedCheckpoint:
    manifest = Manifest(
        job="1", checkpoint=number, kind=kind, token=token, triggered_at=1_000, max_parallelism=128, operators={}
    )
    folder = folder_of(kind, number, token)
    return CompletedCheckpoint(manifest=manifest, folder=folder, size_bytes=10, written_bytes=5, at=1_500, operators=[])


class RecordsInMemory(Records):
    truth = InMemory


class RecordsInPostgres(Records):
    truth = InPostgres


@pytest.mark.hypothesis
def test_the_twin_in_memory_keeps_what_the_model_says() -> None:
    """S1-11, S1-12: newest first, each once, and nothing by whoever holds an older token."""
    chosen = settings(max_examples=examples(100), stateful_step_count=40, deadline=None, derandomize=True)
    run_state_machine_as_test(RecordsInMemory, settings=chosen)


@pytest.mark.hypothesis
@pytest.mark.django_db(transaction=True)
def test_postgres_keeps_what_the_model_says() -> None:
    """S1-11, S1-12: newest first, each once, and nothing by whoever holds an older token."""
    chosen = settings(max_examples=examples(15), stateful_step_count=25, deadline=None, derandomize=True)
    run_state_machine_as_test(RecordsInPostgres, settings=chosen)
