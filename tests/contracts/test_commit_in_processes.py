"""The Parquet sink towards its readers and its killers: rows stream out hidden, and a commit is done or not done."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runtime.connectors.sinks.parquet import ParquetWriter
from tests.contracts.test_sinks import commit, context, names, visible, writer
from tests.waiting import until

FILES = 300
COMMITS = """
import sys, time
from pathlib import Path
import msgspec
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.job.ids import CheckpointId, Token
owed = msgspec.json.decode(Path(sys.argv[2]).read_bytes())
committer = ParquetSink(sys.argv[1]).committer()
for each in owed:
    committer.commit(CommitPermit("7", Token(1), CheckpointId(1), Token(1)), [each])
    time.sleep(0.002)
"""


@pytest.mark.parametrize("count", [1, FILES // 4, FILES // 2])
def test_a_commit_that_is_killed_shows_whole_files_only_and_is_done_again(tmp_path: Path, count: int) -> None:
    """S1-48, S1-51: SIGKILL around the rename; a file is visible with all its rows or not at all, and never twice."""
    folder, list_of = tmp_path / "out", tmp_path / "owed.json"
    owed = prepared(folder)
    list_of.write_bytes(msgspec.json.encode(owed))
    process = subprocess.Popen([sys.executable, "-c", COMMITS, str(folder), str(list_of)], stdout=subprocess.DEVNULL)
    try:
        until(lambda: len(list(folder.glob("part-*"))) >= count)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.wait(60)
    files = sorted(folder.glob("part-*"))
    assert count <= len(files) < FILES, "killed in the middle"
    assert all(pq.read_table(path)["n"].to_pylist() == [int(path.stem.rsplit("-", 1)[1])] * 3 for path in files)
    commit(folder, owed, token=2)
    assert visible(folder) == sorted([number for number in range(1, FILES + 1) for _ in range(3)])
    assert all(name.startswith("part-") for name in names(folder))


def prepared(folder: Path) -> list[Any]:
    """Files of three equal rows each, whose number is in their name."""
    sink, owed = writer(folder), list[Any]()
    for number in range(1, FILES + 1):
        sink.write(pa.RecordBatch.from_pydict({"n": pa.array([number] * 3, pa.int64())}))
        owed += sink.prepare(1)
    return owed


def test_rows_leave_for_the_target_all_along_and_stay_hidden_there(tmp_path: Path) -> None:
    """S1-56: not in one piece when the checkpoint completes."""
    sink, sizes = ParquetWriter(tmp_path, row_group_bytes=1 << 16), []
    sink.open(context("7", 1, "out", 0))
    noise = np.random.default_rng(7)
    for _ in range(4):
        sink.write(pa.RecordBatch.from_arrays([pa.array(noise.integers(0, 2**60, 1 << 14))], names=["n"]))
        (path,) = tmp_path.iterdir()
        sizes.append(path.stat().st_size)
    assert sizes == sorted(set(sizes)), "more has arrived each time, long before the barrier"
    assert sizes[0] > 0
    assert visible(tmp_path) == []
