"""The Parquet sink: prepare, crash, commit twice, clean; what readers see, and what is never touched."""

import errno
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime import durable
from runtime.connectors.file_names import FINAL_NAME, HIDDEN_NAME
from runtime.connectors.names import encode_name
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sinks.print import PrintSink
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.ports import OperatorContext, SinkWriter
from runtime.state.backend import SubtaskState
from tests.example_counts import examples


def writer(folder: Path, *, job: str = "7", token: int = 1, uid: str = "out", index: int = 0) -> SinkWriter:
    writer = ParquetSink(str(folder)).writer()
    writer.open(context(job, token, uid, index))
    return writer


def context(job: str, token: int, uid: str, index: int) -> OperatorContext:
    return OperatorContext(
        job=job, uid=uid, index=index, parallelism=4, max_parallelism=16, token=Token(token),
        state=SubtaskState(range(4), 16, None), now_ms=lambda: 0,
    )  # fmt: skip


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())})


def commit(folder: Path, committables: Any, *, job: str = "7", token: int = 1, checkpoint: int = 1) -> int:
    permit = CommitPermit(job, Token(token), CheckpointId(checkpoint), Token(token))
    return ParquetSink(str(folder)).committer().commit(permit, committables)


def clean(folder: Path, token: int, *keep: Any, job: str = "7", uid: str = "out") -> int:
    return ParquetSink(str(folder)).committer().clean(job, uid, Token(token), keep)


def visible(folder: Path) -> list[int]:
    """What a reader that ignores hidden names sees."""
    return sorted(ds.dataset(folder, format="parquet", schema=batch().schema).to_table()["n"].to_pylist())


def names(folder: Path) -> list[str]:
    """Of everything but commit marks."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith(".committed-"))


def marks(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".committed-*"))


# ---------------------------------------------------------------- two phases


def test_rows_are_hidden_until_they_are_committed(tmp_path: Path) -> None:
    """S1-38, S1-42, S1-43."""
    sink = writer(tmp_path)
    sink.write(batch(1, 2))
    assert names(tmp_path) == [".weir-7-1-out-0-1.inprogress"]
    (committable,) = sink.prepare(5)
    assert names(tmp_path) == [".weir-7-1-out-0-1.pending"]
    assert visible(tmp_path) == []
    assert commit(tmp_path, [committable], checkpoint=5) == 1
    assert names(tmp_path) == ["part-7-1-out-0-5-1.parquet"]
    assert visible(tmp_path) == [1, 2]


def test_a_committable_is_plain_json_and_counts_its_rows(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.write(batch(1, 2))
    sink.write(batch(3))
    (committable,) = sink.prepare(5)
    content = (tmp_path / ".weir-7-1-out-0-1.pending").read_bytes()
    assert committable == {
        "pending": ".weir-7-1-out-0-1.pending",
        "final": "part-7-1-out-0-5-1.parquet",
        "rows": 3,
        "bytes": len(content),
        "crc32": crc32(content),
        "folder": str(tmp_path),
    }


def test_committing_again_is_success_and_changes_nothing(tmp_path: Path) -> None:
    """S1-06."""
    sink = writer(tmp_path)
    sink.write(batch(1))
    committables = sink.prepare(1)
    assert commit(tmp_path, committables) == 1
    before = (tmp_path / committables[0]["final"]).stat().st_mtime_ns
    assert commit(tmp_path, committables, token=2, checkpoint=9) == 0
    assert visible(tmp_path) == [1]
    assert (tmp_path / committables[0]["final"]).stat().st_mtime_ns == before


def test_nothing_prepared_means_nothing_to_commit(tmp_path: Path) -> None:
    """S1-36."""
    sink = writer(tmp_path)
    assert sink.prepare(1) == ()
    assert names(tmp_path) == []


def test_the_writer_goes_on_with_a_new_file_after_a_barrier(tmp_path: Path) -> None:
    """S1-32, S1-37."""
    sink = writer(tmp_path)
    committables = list[Any]()
    for checkpoint in (1, 2):
        sink.write(batch(checkpoint))
        committables += sink.prepare(checkpoint)
    sink.write(batch(3))
    assert commit(tmp_path, committables, checkpoint=2) == 2
    assert visible(tmp_path) == [1, 2]
    sink.close()
    assert names(tmp_path) == ["part-7-1-out-0-1-1.parquet", "part-7-1-out-0-2-2.parquet"]


def test_large_output_is_one_file_of_several_row_groups(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    for start in range(0, 8_000_000, 2_000_000):
        sink.write(batch(start))
        sink.write(pa.RecordBatch.from_arrays([pa.array(np.arange(start + 1, start + 2_000_000))], names=["n"]))
    (committable,) = sink.prepare(1)
    commit(tmp_path, [committable])
    file = pq.ParquetFile(tmp_path / committable["final"])
    assert file.metadata.num_rows == committable["rows"] == 8_000_000
    assert file.metadata.num_row_groups == 2


def test_text_has_a_dictionary_and_numbers_have_none(tmp_path: Path) -> None:
    texts = {"s": ["a", "b"], "d": pa.array(["a", "b"]).dictionary_encode(), "b": [b"a", b"b"]}
    columns = {"n": [1, 2], "x": [0.5, 1.5], "at": pa.array([1, 2], pa.timestamp("us")), "ok": [True, False], **texts}
    for number, table in enumerate((columns, {"n": [1, 2], "inside": [{"s": "a"}, {"s": "b"}]})):
        sink = writer(tmp_path / str(number))
        sink.write(pa.RecordBatch.from_pydict(table))
        commit(tmp_path / str(number), sink.prepare(1))
    (flat,), (nested,) = ([*folder.glob("part-*")] for folder in sorted(tmp_path.iterdir()))
    assert pq.read_table(flat).to_pydict() == pa.table(columns).to_pydict()
    assert with_dictionary(flat) == set(texts)
    assert with_dictionary(nested) == {"n", "inside.s"}


def with_dictionary(path: Path) -> set[str]:
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    return {column.path_in_schema for column in columns if column.has_dictionary_page}


# ---------------------------------------------------------------- crashes


def test_what_a_crash_left_is_cleaned_by_a_newer_attempt_and_by_nobody_else(tmp_path: Path) -> None:
    """S1-51, S1-53, S1-54, S1-39."""
    crashed = writer(tmp_path, token=3)
    crashed.write(batch(1))
    committables = crashed.prepare(1)
    crashed.write(batch(2))
    crashed.prepare(2)
    crashed.write(batch(3))
    assert clean(tmp_path, 3) == 0
    assert clean(tmp_path, 4, *committables, job="8") == 0
    assert len(names(tmp_path)) == 3
    assert clean(tmp_path, 4, *committables, {"kind": "another sink"}) == 2
    assert commit(tmp_path, committables, token=4) == 1
    assert visible(tmp_path) == [1]
    assert clean(tmp_path, 5) == 0


@pytest.mark.parametrize(
    "foreign",
    [
        ".weir-77-1-out-0-1.pending",
        ".weir-7~2D1-1-out-0-1.pending",
        ".weir-7-1-out-0-1.pending.bak",
        ".weir-7-x-out-0-1.inprogress",
        "part-7-1-out-0-1-1.parquet",
        "report.parquet",
        ".hidden",
        "_SUCCESS",
    ],
)
def test_files_of_others_survive_cleaning(tmp_path: Path, foreign: str) -> None:
    """S1-54."""
    (tmp_path / foreign).write_bytes(b"somebody else's")
    assert clean(tmp_path, 100) == 0
    assert (tmp_path / foreign).read_bytes() == b"somebody else's"


def test_cleaning_a_folder_that_is_not_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert clean(tmp_path / "nowhere", 5) == 0


def test_a_writer_that_is_closed_in_the_middle_of_a_file_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor an object that complains when it is collected, in a process that goes on."""
    complaints: list[Any] = []
    gc.collect()  # objects of other tests complain before
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    sink = writer(tmp_path)
    sink.write(batch(1))
    sink.close()
    del sink
    gc.collect()
    assert names(tmp_path) == []
    assert complaints == []


def test_two_jobs_whose_names_look_alike_do_not_touch_each_other(tmp_path: Path) -> None:
    """S1-54."""
    first_writer, second_writer = (
        writer(tmp_path, job="a", token=5, uid="b-5-c"),
        writer(tmp_path, job="a-5-b", token=5, uid="c"),
    )
    for sink in (first_writer, second_writer):
        sink.write(batch(1))
        sink.prepare(1)
    assert clean(tmp_path, 6, job="a", uid="b-5-c") == 1
    assert names(tmp_path) == [".weir-a~2D5~2Db-5-c-0-1.pending"]


def test_two_sinks_of_one_job_in_one_folder_clean_their_own_leftovers_only(tmp_path: Path) -> None:
    """S1-54: what the other has prepared may be owed by a savepoint that only names the other."""
    out, copies = writer(tmp_path, uid="out"), writer(tmp_path, uid="copies")
    for sink in (out, copies):
        sink.write(batch(1))
    committables = copies.prepare(1)
    out.prepare(1)
    assert clean(tmp_path, 2, uid="out") == 1
    assert clean(tmp_path, 2, *committables, uid="copies") == 0
    assert commit(tmp_path, committables, token=2) == 1


def test_a_zombie_cannot_overwrite_or_remove_what_the_next_attempt_writes(tmp_path: Path) -> None:
    """S1-11."""
    zombie, next_one = writer(tmp_path, token=1), writer(tmp_path, token=2)
    for sink, number in ((zombie, 1), (next_one, 2)):
        sink.write(batch(number))
    prepared = next_one.prepare(1)
    zombie.prepare(1)
    commit(tmp_path, prepared, token=2)
    zombie.write(batch(1))
    zombie.prepare(2)
    zombie.close()
    assert clean(tmp_path, 1) == 0
    assert visible(tmp_path) == [2]
    assert clean(tmp_path, 3) == 2


def test_a_file_that_is_neither_pending_nor_committed_is_named(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.write(batch(1))
    (committable,) = sink.prepare(1)
    (tmp_path / committable["pending"]).unlink()
    with pytest.raises(EnvironmentFailure, match="neither pending nor committed"):
        commit(tmp_path, [committable])


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_committed_file_that_a_consumer_took_away_is_not_owed_any_more(tmp_path: Path, attempts: int) -> None:
    """Every attempt commits again what its checkpoint holds; nothing may fail then, and nothing come back."""
    sink, committables = writer(tmp_path), list[Any]()
    for checkpoint in (1, 2):
        sink.write(batch(checkpoint))
        committables += sink.prepare(checkpoint)
    sink.write(batch(3))
    later = sink.prepare(3)
    commit(tmp_path, committables[:1], checkpoint=1)
    commit(tmp_path, committables, checkpoint=2)
    for path in tmp_path.glob("part-*"):
        path.unlink()
    for token in range(2, 2 + attempts):
        assert commit(tmp_path, committables, token=token, checkpoint=2) == 0
        clean(tmp_path, token, *committables, *later)
    assert visible(tmp_path) == []
    assert commit(tmp_path, [*committables, *later], token=9, checkpoint=3) == 1
    assert visible(tmp_path) == [3]


@pytest.mark.parametrize("consumer", ["mv out/* taken/", "rm out/*", "mv out/* taken/; rm -rf out/_*"])
def test_what_a_consumer_does_with_a_shell_leaves_the_marks(tmp_path: Path, consumer: str) -> None:
    """A shell's `*` and clean-ups of `_*` pass over names that begin with a dot."""
    (tmp_path / "taken").mkdir()
    sink = writer(tmp_path / "out")
    sink.write(batch(1))
    committables = sink.prepare(1)
    commit(tmp_path / "out", committables)
    subprocess.run(consumer, shell=True, cwd=tmp_path, check=True)
    for token in (2, 3):
        assert commit(tmp_path / "out", committables, token=token) == 0
    assert marks(tmp_path / "out") == [".committed-7-1-out-0-1"]
    assert visible(tmp_path / "out") == []


def test_a_mark_is_no_excuse_for_a_file_that_was_prepared_later(tmp_path: Path) -> None:
    """Nor does an attempt to commit what is not there make one: the next attempt must fail as well."""
    sink = writer(tmp_path)
    sink.write(batch(1))
    first = sink.prepare(1)
    sink.write(batch(2))
    second = sink.prepare(2)
    commit(tmp_path, first)
    (tmp_path / second[0]["pending"]).unlink()
    for token in (2, 3):
        with pytest.raises(EnvironmentFailure, match="neither pending nor committed"):
            commit(tmp_path, [*first, *second], token=token, checkpoint=2)
    assert marks(tmp_path) == [".committed-7-1-out-0-1"]


def test_a_folder_that_is_not_the_one_shows_no_commit(tmp_path: Path) -> None:
    """A mount that is missing on the master's host: all that is pending there would be taken for committed."""
    sink = writer(tmp_path / "out")
    sink.write(batch(1))
    committables = sink.prepare(1)
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    (tmp_path / "out").mkdir()
    with pytest.raises(EnvironmentFailure, match="neither pending nor committed"):
        commit(tmp_path / "out", committables)


def test_marks_are_few_and_go_with_the_last_manifest_that_may_ask_for_them(tmp_path: Path) -> None:
    sink, other = writer(tmp_path), writer(tmp_path, uid="other")
    committer, prepared = ParquetSink(str(tmp_path)).committer(), list[Any]()
    for checkpoint in range(1, 5):
        sink.write(batch(checkpoint))
        prepared += sink.prepare(checkpoint)
        committer.commit(CommitPermit("7", Token(1), CheckpointId(checkpoint), Token(1)), prepared[-1:])
    other.write(batch(5))
    commit(tmp_path, other.prepare(5))
    assert marks(tmp_path) == [".committed-7-1-other-0-1", ".committed-7-1-out-0-4"]
    (tmp_path / ".committed-7-1-out-0-2").touch()  # of a zombie
    clean(tmp_path, 2, prepared[0])
    assert marks(tmp_path) == [".committed-7-1-other-0-1", ".committed-7-1-out-0-4"]
    clean(tmp_path, 1)
    clean(tmp_path, 2, job="8")
    assert len(marks(tmp_path)) == 2
    clean(tmp_path, 2)
    assert marks(tmp_path) == [".committed-7-1-other-0-1"]


def test_a_pending_file_that_was_cut_short_is_not_shown(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.write(batch(1))
    (committable,) = sink.prepare(1)
    (tmp_path / committable["pending"]).write_bytes(b"PAR1")
    with pytest.raises(EnvironmentFailure, match=r"has 4 bytes, not \d+"):
        commit(tmp_path, [committable])
    assert visible(tmp_path) == []


@pytest.mark.parametrize("target", ["a file", "a folder"])
@pytest.mark.parametrize("into", ["out", "elsewhere"])
def test_a_pending_file_that_is_a_link_is_refused(tmp_path: Path, into: str, target: str) -> None:
    """It would show any file that the service account can read, and its size can be known."""
    sink, private = writer(tmp_path / "out"), tmp_path / "private"
    sink.write(batch(1))
    (committable,) = sink.prepare(1)
    pending = tmp_path / "out" / committable["pending"]
    private.mkdir() if target == "a folder" else private.write_bytes(pending.read_bytes())
    pending.unlink()
    pending.symlink_to(private)
    crafted = {**committable, "bytes": pending.stat().st_size}
    with pytest.raises(JobRejected, match=f"{pending}: the file to commit is not a regular file"):
        commit(tmp_path / into, [crafted])
    assert visible(tmp_path / "out") == []
    assert names(tmp_path / "out") == [pending.name], "nothing was shown, and no mark made"
    assert marks(tmp_path / "out") == []
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_to_the_pending_file_is_in_the_way(tmp_path: Path) -> None:
    """Taken for a commit that was cut off, the pending file would be removed, and the link would lead nowhere."""
    sink = writer(tmp_path)
    sink.write(batch(1))
    (committable,) = sink.prepare(1)
    (tmp_path / committable["final"]).symlink_to(tmp_path / committable["pending"])
    with pytest.raises(EnvironmentFailure, match="a foreign file has the name of the file to commit"):
        commit(tmp_path, [committable])
    assert (tmp_path / committable["pending"]).exists()


@pytest.mark.parametrize("exclusive", [True, False], ids=["one step", "two steps"])
def test_a_foreign_file_in_the_way_is_never_overwritten(
    tmp_path: Path, exclusive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exclusive:
        monkeypatch.setattr(durable, "rename_exclusively", lambda source, target: False)
    sink = writer(tmp_path)
    sink.write(batch(1))
    (committable,) = sink.prepare(1)
    pq.write_table(pa.table({"n": [42]}), tmp_path / committable["final"])
    with pytest.raises(EnvironmentFailure, match="a foreign file has the name of the file to commit"):
        commit(tmp_path, [committable])
    assert visible(tmp_path) == [42]
    assert (tmp_path / committable["pending"]).exists()


def test_a_file_system_without_exclusive_renames_commits_in_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "rename_exclusively", lambda source, target: False)
    sink = writer(tmp_path)
    sink.write(batch(1))
    committables = sink.prepare(1)
    assert [commit(tmp_path, committables), commit(tmp_path, committables)] == [1, 0]
    assert visible(tmp_path) == [1]


def test_a_commit_in_two_steps_by_two_at_once_is_success_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another holder of a permit renames the file between the look and the rename. S1-05."""
    monkeypatch.setattr(durable, "rename_exclusively", lambda source, target: False)
    sink = writer(tmp_path)
    sink.write(batch(1))
    committables, rename = sink.prepare(1), Path.rename

    def overtaken(self: Path, target: Path) -> Path:
        rename(self, target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", overtaken)
    assert commit(tmp_path, committables) == 0
    assert visible(tmp_path) == [1]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["write", "checkpoint", "lost checkpoint", "crash"]), max_size=30))
def test_every_row_of_a_completed_checkpoint_is_visible_once_whatever_crashes(
    steps: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """S1-13, S1-24, S1-40, S1-47, S1-51, S1-53, S1-21, S1-30.

    A crash repeats the rows since the last completed checkpoint, as a source that rewinds does.
    """
    folder, token, checkpoint, number = tmp_path_factory.mktemp("out"), 1, 0, 0
    durable, owed = 0, list[Any]()  # rows and committables in the last completed checkpoint
    sink, prepared = writer(folder, token=token), list[Any]()
    for step in [*steps, "checkpoint", "crash"]:
        if step == "write":
            sink.write(batch(number))
            number += 1
        elif step == "crash":
            token += 1
            commit(folder, owed, token=token, checkpoint=checkpoint)
            clean(folder, token, *owed)
            sink, prepared, number = writer(folder, token=token), [], durable
        else:
            checkpoint += 1
            prepared += sink.prepare(checkpoint)
            if step == "checkpoint":
                durable, owed = number, list(prepared)
                if checkpoint % 2:  # the notice may be lost: then a later one, or the restore, commits
                    commit(folder, prepared, token=token, checkpoint=checkpoint)
                    prepared = []
        rows = visible(folder)
        assert len(rows) == len(set(rows))
        assert all(row < durable for row in rows)
    assert visible(folder) == list(range(durable))
    assert all(name.startswith("part-") for name in names(folder))


# ---------------------------------------------------------------- into another folder


def test_what_was_committed_in_one_folder_is_not_owed_in_another(tmp_path: Path) -> None:
    """Blue and green: also when a consumer has taken the file away."""
    sink = writer(tmp_path / "blue")
    sink.write(batch(1))
    committables = sink.prepare(1)
    commit(tmp_path / "blue", committables)
    assert commit(tmp_path / "green", committables, token=2) == 0
    (tmp_path / "blue" / committables[0]["final"]).unlink()
    assert commit(tmp_path / "green", committables, token=2) == 0
    assert not (tmp_path / "green").exists()


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_what_is_pending_in_one_folder_is_committed_in_each_that_it_is_restored_into(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay: the savepoint stays as it was, for a third folder and for the first."""
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", refused)
    sink = writer(tmp_path / "blue")
    sink.write(batch(1, 2))
    committables = sink.prepare(1)
    for token, folder in enumerate(("green", "red", "blue"), 2):
        assert [commit(tmp_path / folder, committables, token=token) for _ in range(2)] == [1, 0]
        assert visible(tmp_path / folder) == [1, 2]
        assert names(tmp_path / folder) == [committables[0]["final"]]


def test_a_copy_without_links_writes_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither does it follow the pending file, should it have become a link since it was looked at."""
    monkeypatch.setattr(Path, "hardlink_to", refused)
    sink, victim = writer(tmp_path / "blue"), tmp_path / "victim"
    sink.write(batch(1))
    (committable,) = sink.prepare(1)
    victim.write_bytes(b"somebody else's")
    (tmp_path / "green").mkdir()
    (tmp_path / "green" / committable["pending"]).with_suffix(".inprogress").symlink_to(victim)
    assert commit(tmp_path / "green", [committable], token=2) == 1
    assert victim.read_bytes() == b"somebody else's"
    (tmp_path / "link").symlink_to(victim)
    with pytest.raises(EnvironmentFailure, match="symbolic links"):
        durable.copy_file(tmp_path / "link", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def refused(self: Path, target: Path) -> None:
    raise OSError(errno.EPERM, "this file system has no links")


def test_what_is_in_no_folder_is_named_with_the_one_where_it_was_written(tmp_path: Path) -> None:
    sink = writer(tmp_path / "blue")
    sink.write(batch(1, 2))
    committables = sink.prepare(1)
    (tmp_path / "blue").rename(tmp_path / "on another machine")
    with pytest.raises(EnvironmentFailure, match=rf"with 2 rows.*{tmp_path}/blue, where it was written"):
        commit(tmp_path / "green", committables, token=2)


def test_a_former_folder_outside_the_data_roots_is_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = writer(tmp_path / "blue")
    sink.write(batch(1))
    committables = sink.prepare(1)
    monkeypatch.setenv("WEIR_DATA_ROOTS", str(tmp_path / "green"))
    with pytest.raises(JobRejected, match="not a folder that jobs may use"):
        commit(tmp_path / "green", committables, token=2)


# ---------------------------------------------------------------- readers


SPARK_READS = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(sorted(row.n for row in spark.read.parquet(sys.argv[1]).collect()))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_spark_sees_committed_files_only(tmp_path: Path) -> None:
    """S1-43, S1-59."""
    sink = writer(tmp_path, job="night job/7", uid="out.put-1")
    sink.write(batch(1, 2))
    commit(tmp_path, sink.prepare(1), job="night job/7")
    sink.write(batch(3))
    sink.prepare(2)
    sink.write(batch(4))
    command = [sys.executable, "-c", SPARK_READS, str(tmp_path)]  # a process of its own: sessions are per process
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert process.stdout.splitlines()[-1] == "[1, 2]"


# ---------------------------------------------------------------- the rest


def test_names_keep_their_parts_apart() -> None:
    assert encode_name("plain_Name.1") == "plain_Name.1"
    assert encode_name("a-b/c é~") == "a~2Db~2Fc~20~C3~A9~7E"


def test_a_sink_without_a_folder_is_refused() -> None:
    with pytest.raises(JobRejected, match="path"):
        ParquetSink("").check()


def test_the_print_sink_prints_rows_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    sink = PrintSink(prefix="> ").writer()
    sink.open(context("7", 1, "out", 0))
    sink.write(pa.RecordBatch.from_pydict({"n": [1, 2], "s": ["a", None]}))
    sink.write(batch())
    assert sink.prepare(1) == ()
    assert capsys.readouterr().out == '> 1> {"n":1,"s":"a"}\n> 1> {"n":2,"s":null}\n'
    assert (PrintSink.guarantee, ParquetSink.guarantee) == ("at-least-once", "exactly-once")


# ---------------------------------------------------------------- names from a crafted manifest


@pytest.mark.parametrize(
    "change",
    [
        {"pending": "../../../victim.txt"},
        {"pending": "/etc/hostname"},
        {"final": "../stolen.parquet"},
        {"final": "part-7-1-out-0-../../../x-1.parquet"},
        {"pending": ".weir-8-1-out-0-1.pending"},
        {"pending": ".weir-..~2F..-1-out-0-1.pending"},
        {"pending": ".weir-7-1-out-0-2.pending"},
        {"final": "orders.csv"},
        {"bytes": "4"},
        {"folder": 4},
        {"pending": 5},
    ],
)
def test_names_that_are_not_our_own_move_no_file(tmp_path: Path, change: dict[str, Any]) -> None:
    """A savepoint with `../../../victim.txt` as committable moved that file, and so could publish or remove any."""
    folder, victim = tmp_path / "a" / "b" / "out", tmp_path / "victim.txt"
    victim.write_text("1234")
    sink = writer(folder)
    sink.write(batch(1))
    (committable,) = sink.prepare(1)
    before = names(folder)
    crafted = {**committable, **({"bytes": 4} if "pending" in change else {}), **change}
    with pytest.raises(JobRejected, match="that this sink has not written") as error:
        commit(folder, [committable, crafted])
    assert error.value.code == "bad-committable"
    assert names(folder) == before, "nothing is committed when one name is bad"
    assert victim.read_text() == "1234"
    assert not list(tmp_path.rglob("stolen*"))


@pytest.mark.parametrize("committable", [None, 5, "x", [], {}, {"pending": ".weir-7-1-out-0-1.pending"}])
def test_what_never_was_a_committable_is_refused(tmp_path: Path, committable: Any) -> None:
    with pytest.raises(JobRejected):
        commit(tmp_path, [committable])


@given(st.text(min_size=1), st.text(min_size=1))
def test_every_name_that_the_writer_makes_is_its_own(job: str, uid: str) -> None:
    owner = f"{encode_name(job)}-3-{encode_name(uid)}-0"
    assert HIDDEN_NAME.fullmatch(f".weir-{owner}-1.pending")
    assert FINAL_NAME.fullmatch(f"part-{owner}-5-1.parquet")
