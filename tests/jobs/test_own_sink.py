"""A sink that somebody writes for a target of their own, in two classes: what the ports ask of it is enough."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import weir
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Gated
from tests.jobs.live import positions_in
from tests.jobs.mortal import Deaths, Mortal


@dataclass(frozen=True)
class LinesSink:
    """Lines of JSON, exactly once: begin at the first row, prepare at the barrier, commit or abort by name."""

    folder: Path
    guarantee = "exactly-once"

    def writer(self) -> "LinesWriter":
        return LinesWriter(self.folder)

    def committer(self) -> "LinesCommitter":
        return LinesCommitter(self.folder)

    def check(self) -> None:
        return None


class LinesWriter(weir.spi.SinkWriter):
    def __init__(self, folder: Path) -> None:
        self._folder, self._lines = folder, list[str]()

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._folder.mkdir(exist_ok=True)
        self._name = f"{context.token}-{context.index}"

    def write(self, batch: pa.RecordBatch) -> None:
        self._lines += [json.dumps(row) for row in batch.to_pylist()]

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        if not self._lines:
            return ()
        name, lines = f"{self._name}-{checkpoint}", self._lines
        self._lines = []
        (self._folder / f"_{name}").write_text("\n".join(lines))
        return (name,)


class LinesCommitter(weir.spi.SinkCommitter):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def commit(self, permit: weir.spi.CommitPermit, committables: Sequence[Any]) -> int:
        pending = [name for name in committables if (self._folder / f"_{name}").exists()]
        for name in pending:
            (self._folder / f"_{name}").rename(self._folder / name)
        return len(pending)

    def clean(self, job: str, uid: str, token: weir.spi.Token, keep: Sequence[Any]) -> int:
        left = [path for path in self._folder.glob("_*") if path.name[1:] not in keep]
        old = [path for path in left if int(path.name[1:].split("-")[0]) < token]
        for path in old:
            path.unlink()
        return len(old)


def visible(folder: Path) -> list[dict[str, Any]]:
    files = [path for path in sorted(folder.glob("*")) if not path.name.startswith("_")]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@dataclass(frozen=True)
class MortalLines(LinesSink):
    """Ends the process of a subtask that is about to commit."""

    deaths: Deaths = field(default_factory=Deaths)

    def committer(self) -> LinesCommitter:
        return _MortalCommitter(self.folder, Mortal(self.deaths, "out"))


class _MortalCommitter(LinesCommitter):
    def __init__(self, folder: Path, mortal: Mortal) -> None:
        super().__init__(folder)
        self._mortal = mortal

    def commit(self, permit: weir.spi.CommitPermit, committables: Sequence[Any]) -> int:
        self._mortal.at("commit")
        return super().commit(permit, committables)


def test_a_sink_of_ones_own_is_exact_over_crashes_and_a_drain(tmp_path: Path, jobs: Jobs) -> None:
    """S1-21, S1-24, S1-35: thirty lines of file handling, and nothing about barriers in them.

    A slot ends between the record of a checkpoint and its commit: what was prepared is named in the checkpoint.
    """
    source, deaths, folder = Gated(total=100), Deaths(), tmp_path / "lines"
    flow = weir.Dataflow("lines")
    flow.source("numbers", source).sink("out", MortalLines(folder, deaths))
    with jobs.running(flow.compile(2), tmp_path / "state", restart=weir.FixedDelay(attempts=9, delay_ms=20)) as run:
        for token in (2, 3):
            run.checkpoints(2)
            deaths.add("out: commit")
            source.total += 60
            run.wait_for(lambda token=token: run.records.token == token)  # type: ignore[misc]
        run.wait_for(lambda: positions_in(run.manifests[-1], tmp_path / "state", 4) == [source.total] * 4)
        run.end("drain")
    assert Counter(row["value"] for row in visible(folder)) == dict.fromkeys(range(source.total), source.splits)
    assert not list(folder.glob("_*")), "nothing is left half-way"
