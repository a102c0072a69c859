"""The records of a run in a file, for a run whose processes are killed: as fenced as those in Postgres."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runtime.core.checkpoint.effects import ReportCheckpoint
from runtime.core.job.ids import Token
from runtime.core.job.settings import RetentionPolicy
from runtime.io.memory.run_store import MemoryRunStore
from runtime.run_store import CompletedCheckpoint
from tests.contracts.sinks.kills import Kill
from tests.contracts.sinks.run_lock import run_lock


@dataclass(frozen=True)
class _Row:
    token: int = 0
    next_id: int = 1
    completed: tuple[CompletedCheckpoint, ...] = ()
    is_done: bool = False


@dataclass
class FileRunStore(MemoryRunStore):
    """`take_over` gives the next process a newer token; the older one is superseded from then on."""

    path: Path = Path()
    kill: Kill = field(default_factory=Kill)

    @classmethod
    def take_over(cls, path: Path, kill: Kill) -> FileRunStore:
        with _locked(path) as row:
            new_row = _Row(row.token + 1, row.next_id, row.completed)
            _write(path, new_row)
        return cls(path=path, kill=kill, token=Token(new_row.token), completed=list(new_row.completed))

    def next_checkpoint_id(self) -> int | None:
        with _locked(self.path) as row:
            if not self._is_current(row):
                return None
            _write(self.path, _Row(row.token, row.next_id + 1, row.completed))
            return row.next_id

    def record_checkpoint(self, completed: CompletedCheckpoint) -> bool:
        self.kill.at("after-manifest")
        with _locked(self.path) as row:
            if not self._is_current(row):
                return False
            recorded = super().record_checkpoint(completed)
            _write(self.path, _Row(row.token, row.next_id, self._kept))
        self.kill.at("after-record")
        self.kill.armed = len(self.completed) >= 2
        return recorded

    def report_checkpoint(self, report: ReportCheckpoint) -> None:
        super().report_checkpoint(report)
        if report.reason is not None:
            with self.path.with_suffix(".failed").open("a") as file:
                file.write(f"{report.reason}\n")

    def discard_older(self, policy: RetentionPolicy) -> list[str]:
        """Recorded before the files are deleted: the next process must not look for them."""
        with _locked(self.path) as row:
            if not self._is_current(row):
                return []
            paths = super().discard_older(policy)
            _write(self.path, _Row(row.token, row.next_id, self._kept))
            return paths

    @property
    def _kept(self) -> tuple[CompletedCheckpoint, ...]:
        return tuple(each for each in self.completed if each.manifest.checkpoint not in self._discarded)

    def next_attempt(self, reason: str, detail: Mapping[str, Any]) -> Token | None:
        with _locked(self.path) as row:
            if not self._is_current(row):
                return None
            token = super().next_attempt(reason, detail)
            assert token is not None
            _write(self.path, _Row(int(token), row.next_id, row.completed))
            return token

    def _is_current(self, row: _Row) -> bool:
        self.superseded = self.superseded or row.token != self.token
        return not self.superseded


def checkpoints_in(path: Path) -> int:
    """The number of recorded checkpoints."""
    with _locked(path) as row:
        return len(row.completed)


def newest_checkpoint_in(path: Path) -> int:
    """The id of the newest recorded checkpoint; 0: none."""
    with _locked(path) as row:
        return max((each.manifest.checkpoint for each in row.completed), default=0)


def pending_checkpoints_in(path: Path) -> int:
    """The number of checkpoints that were triggered after the newest recorded one."""
    with _locked(path) as row:
        return row.next_id - 1 - max((each.manifest.checkpoint for each in row.completed), default=0)


def finished_operators_in(path: Path) -> set[str]:
    """The operators that had finished at the newest recorded checkpoint."""
    with _locked(path) as row:
        return set(row.completed[-1].manifest.finished_operators())


def failed_checkpoints_in(path: Path) -> list[str]:
    """The reasons why checkpoints failed."""
    file = path.with_suffix(".failed")
    return file.read_text().splitlines() if file.exists() else []


def restore_point(path: Path, content: bytes) -> None:
    """Makes the next process restore the newest checkpoint of `content`, an earlier content of the file."""
    with _locked(path) as row:
        _write(path, replace(row, completed=pickle.loads(content).completed))


@contextmanager
def _locked(path: Path) -> Iterator[_Row]:
    with run_lock(path.with_suffix(".lock")):
        yield pickle.loads(path.read_bytes()) if path.exists() else _Row()


def _write(path: Path, row: _Row) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(pickle.dumps(row))
    new.replace(path)
