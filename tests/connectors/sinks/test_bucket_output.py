"""Parquet files in a bucket of a real S3 server: repeated commits, strangers, zombies, and uploads that are left."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import obstore.fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from runtime.access.data_roots import DATA_URLS_VARIABLE
from runtime.connectors import bucket_file
from runtime.connectors.bucket import Bucket
from runtime.connectors.sinks import row_files
from runtime.connectors.sinks.bucket_output import BucketCommitLog
from runtime.connectors.tables import table_writer
from runtime.core.job.ids import Token
from runtime.errors import EnvironmentFailure, JobRejected, WeirError, is_outage
from runtime.s3 import PART_BYTES
from tests.connectors.sinks.test_row_files import opened
from tests.connectors.two_phases import JOB, commit, prepared, rows, writer
from tests.s3 import BUCKET, S3Server, environment_of
from tests.s3_proxy import ONCE_MORE, Answer, Fault, Faults, faulty_proxy

OWNER = ("job~201", "out")


@pytest.fixture
def uri(bucket_uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(DATA_URLS_VARIABLE, f"s3://{BUCKET}")
    return bucket_uri


@pytest.fixture
def sink(uri: str) -> weir.ParquetSink:
    sink = weir.ParquetSink(uri)
    sink.check()
    return sink


@pytest.fixture
def faults(s3_server: S3Server, uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    with faulty_proxy(s3_server) as (port, faults):
        for name, value in environment_of(port).items():
            monkeypatch.setenv(name, value)
        yield faults


def numbers(uri: str, column: str = "n") -> list[int]:
    """A column of the rows that DuckDB sees."""
    names = [f"{uri}/{name}" for name in stored(uri, "part-")]
    with duckdb.connect() as connection:
        connection.register_filesystem(obstore.fsspec.FsspecStore("s3", client_options={"allow_http": True}))
        found = connection.execute(f"SELECT {column} FROM read_parquet({names})").fetchall() if names else []
    return sorted(number for (number,) in found)


def uploads(uri: str) -> list[str]:
    return [name for name, _ in Bucket(uri).uploads()]


def stored(uri: str, prefix: str) -> list[str]:
    return Bucket(uri).names(prefix)


def test_rows_are_unseen_before_their_commit_and_a_repetition_changes_nothing(sink: weir.ParquetSink) -> None:
    first = writer(sink)
    ready = prepared(first, 1, 1, 2)
    assert numbers(sink.path) == []
    assert [commit(sink, *ready), commit(sink, *ready)] == [1, 0]
    assert numbers(sink.path) == [1, 2]
    assert uploads(sink.path) == stored(sink.path, ".claims/") == []
    assert commit(sink, *prepared(first, 2, 3), checkpoint=2) == 1
    assert numbers(sink.path) == [1, 2, 3]
    assert [epoch.checkpoint for epoch in BucketCommitLog(Bucket(sink.path)).epochs(*OWNER)] == [1, 2]


def test_partitions_are_folders_as_of_hive(uri: str) -> None:
    sink = weir.ParquetSink(uri, partition_by=("day",))
    first = writer(sink)
    first.write(pa.RecordBatch.from_pydict({"n": [1, 2, 3], "day": ["a b", "c/d", None]}))
    commit(sink, *first.prepare(1))
    folders = {name.rpartition("/")[0] for name in stored(uri, "day=")}
    assert folders == {"day=a b", "day=c%2Fd", "day=__HIVE_DEFAULT_PARTITION__"}


def test_files_of_rows_end_at_each_checkpoint(uri: str) -> None:
    contents = []
    for make in (weir.JsonLinesSink, weir.CsvSink, weir.AvroSink):
        sink = make(f"{uri}/{make.__name__}", roll_on_checkpoint=True)
        sink.check()
        first = writer(sink)
        ready = prepared(first, 1, 1, 2)
        assert stored(sink.path, "part-") == []
        commit(sink, *ready)
        commit(sink, *prepared(first, 2, 3), checkpoint=2)
        names = stored(sink.path, "part-")
        assert [name.rpartition("-")[2] for name in names] == [f"{number}.{sink.suffix}" for number in (1, 2)]
        assert uploads(sink.path) == []
        contents.append([Bucket(sink.path).read(name) for name in names])
    assert contents[0] == [b'{"n":1}\n{"n":2}\n', b'{"n":3}\n']
    assert contents[1][1] == b'"n"\n3\n'


def test_a_file_in_progress_of_a_folder_is_not_continued_in_a_bucket(uri: str, tmp_path: Path) -> None:
    """A savepoint of a job that wrote into a folder, restored with a bucket in its place."""
    growing = opened(weir.JsonLinesSink(str(tmp_path)))
    growing.write(rows(1))
    _, entries = growing.snapshot(1)
    with pytest.raises(JobRejected, match=rf"is in progress in {tmp_path}, which a bucket cannot continue"):
        opened(weir.JsonLinesSink(uri, roll_on_checkpoint=True), entries, token=2)


def test_a_large_file_is_uploaded_in_parts_as_rows_arrive(faults: Faults, sink: weir.ParquetSink) -> None:
    """Its commit is interrupted behind the completion: the repetition knows the object by the ETag of all parts."""
    rng, count = random.Random(5), PART_BYTES // 4  # random numbers do not compress
    values = [rng.getrandbits(62) for _ in range(count)]
    first = writer(sink)
    for _ in range(2):
        first.write(rows(*values))
    assert uploads(sink.path), "the first part is on its way before the barrier"
    (ready,) = first.prepare(1)
    assert len(ready["etags"]) > 2
    faults.rule = lambda method, path: Answer.error(403, "AccessDenied") if "/.commit-log/" in path else None
    with pytest.raises(EnvironmentFailure, match="AccessDenied"):
        commit(sink, ready)
    faults.rule = lambda method, path: None
    Bucket(sink.path).delete(stored(sink.path, ".claims/"))
    assert commit(sink, ready) == 0
    content = Bucket(sink.path).read(ready["final"])
    assert pq.read_table(pa.BufferReader(content))["n"].to_pylist() == 2 * values


def test_an_object_that_a_consumer_took_is_not_written_again(sink: weir.ParquetSink) -> None:
    ready = prepared(writer(sink), 1, 1)
    commit(sink, *ready)
    Bucket(sink.path).delete(stored(sink.path, "part-"))
    assert commit(sink, *ready) == 0
    assert numbers(sink.path) == []


def test_a_restore_reads_the_end_of_the_commit_log(faults: Faults, sink: weir.ParquetSink) -> None:
    """A log has an entry per checkpoint. A restore of an older checkpoint reads the entries behind it."""
    first, ready = writer(sink), dict[int, list[Any]]()
    for checkpoint in range(1, 13):
        ready[checkpoint] = prepared(first, checkpoint, checkpoint)
        commit(sink, *ready[checkpoint], checkpoint=checkpoint)
    for checkpoint, entries in ((12, 2), (9, 6), (1, 14)):
        before = faults.requests["GET"]
        assert commit(sink, *ready[checkpoint], token=1, checkpoint=checkpoint) == 0
        assert faults.requests["GET"] - before <= 2 * entries
    assert numbers(sink.path) == list(range(1, 13))
    assert len(stored(sink.path, ".commit-log/")) == 12


def test_a_savepoint_that_is_restored_between_others_adds_no_row_twice(sink: weir.ParquetSink) -> None:
    """The newest entry is then that of an older checkpoint, and names none of the files of the others."""
    first = writer(sink)
    third, fifth = prepared(first, 3, 3), prepared(first, 5, 5)
    commit(sink, *fifth, checkpoint=5)
    commit(sink, *third, checkpoint=3)
    Bucket(sink.path).delete(stored(sink.path, "part-"))
    assert commit(sink, *fifth, checkpoint=5) == 0
    assert commit(sink, *third, checkpoint=3) == 0
    assert stored(sink.path, "part-") == []


def test_a_foreign_object_is_never_overwritten(sink: weir.ParquetSink) -> None:
    (ready,) = prepared(writer(sink), 1, 1)
    foreign = bytes(ready["bytes"])
    Bucket(sink.path).put(ready["final"], foreign)
    with pytest.raises(EnvironmentFailure, match=rf"{ready['final']}: a foreign object has the name"):
        commit(sink, ready)
    assert Bucket(sink.path).read(ready["final"]) == foreign
    Bucket(sink.path).delete([ready["final"]])
    assert commit(sink, ready) == 1, "its upload is still pending"
    assert numbers(sink.path) == [1]


def test_jobs_of_two_consoles_with_the_same_ids_write_all_their_rows(sink: weir.ParquetSink) -> None:
    """Each console numbers its jobs and attempts from 1, so names and orders of checkpoints repeat."""
    commit(sink, *prepared(writer(sink), 5, 1), checkpoint=5)
    (ready,), (other,) = prepared(writer(sink), 1, 2), prepared(writer(sink), 1, 3)
    assert [commit(sink, ready), commit(sink, other), commit(sink, ready), commit(sink, other)] == [1, 1, 0, 0]
    assert numbers(sink.path) == [1, 2, 3]
    assert sum(epoch.rows for epoch in BucketCommitLog(Bucket(sink.path)).epochs(*OWNER)) == 3


def test_a_name_that_another_upload_has_claimed_is_refused(sink: weir.ParquetSink) -> None:
    """Names are random: only a manifest of another origin has the name of another upload."""
    (ready,) = prepared(writer(sink), 1, 1)
    Bucket(sink.path).create(f".claims/{ready['final']}.claim", b"another upload")
    with pytest.raises(EnvironmentFailure, match=r"another upload has claimed .*, see s3://.*/\.claims/part-.*\.claim"):
        commit(sink, ready)
    assert numbers(sink.path) == []


def test_a_file_that_a_consumer_took_before_its_log_entry_is_committed(faults: Faults, sink: weir.ParquetSink) -> None:
    """The master is killed between the completion and the log, while an event-driven consumer moves the object."""
    ready = prepared(writer(sink), 1, 1, 2)
    faults.rule = lambda method, path: Answer.error(403, "AccessDenied") if "/.commit-log/" in path else None
    with pytest.raises(EnvironmentFailure, match="AccessDenied"):
        commit(sink, *ready)
    assert numbers(sink.path) == [1, 2]
    faults.rule = lambda method, path: None
    Bucket(sink.path).delete(stored(sink.path, "part-"))
    assert [commit(sink, *ready), commit(sink, *ready)] == [0, 0]
    assert [epoch.rows for epoch in BucketCommitLog(Bucket(sink.path)).epochs(*OWNER)] == [2]
    assert stored(sink.path, ".claims/") == []


def test_a_lost_upload_is_found_before_any_file_becomes_visible(sink: weir.ParquetSink) -> None:
    """As a lifecycle rule aborts it. An older checkpoint can then be restored, without rows that appear twice."""
    ready = [prepared(writer(sink, index=index), 1, index)[0] for index in range(3)]
    Bucket(sink.path).abort(ready[2]["final"], ready[2]["upload"])
    assert sink.committer().missing(ready) == [f"{sink.path}/{ready[2]['final']}"]
    with pytest.raises(EnvironmentFailure, match=rf"{ready[2]['final']}: .* with 1 rows, is neither pending nor"):
        commit(sink, *ready)
    assert numbers(sink.path) == []
    assert stored(sink.path, ".claims/") == []


def test_prepared_committed_and_moved_files_are_present(sink: weir.ParquetSink) -> None:
    first = writer(sink)
    moved, visible, pending = (prepared(first, number, number)[0] for number in (1, 2, 3))
    commit(sink, moved)
    Bucket(sink.path).delete([moved["final"]])
    commit(sink, visible, checkpoint=2)
    assert sink.committer().missing([moved, visible, pending]) == []


def test_a_claim_that_outlived_its_commit_is_deleted_by_the_repetition(faults: Faults, sink: weir.ParquetSink) -> None:
    """The master is killed between the log entry and the deletion."""
    ready = prepared(writer(sink), 1, 1)
    faults.rule = lambda method, path: Answer.error(403, "AccessDenied") if path.endswith("?delete") else None
    with pytest.raises(EnvironmentFailure, match="cannot be deleted: status 403"):
        commit(sink, *ready)
    faults.rule = lambda method, path: None
    assert len(stored(sink.path, ".claims/")) == 1
    assert commit(sink, *ready) == 0
    assert stored(sink.path, ".claims/") == []


def test_several_masters_commit_the_same_uploads_once(sink: weir.ParquetSink) -> None:
    for turn in range(1, 11):
        ready = prepared(writer(sink, token=turn), turn, turn)
        gate = threading.Barrier(4)

        def commit_at_once(_: int, ready: list[Any] = ready, gate: Any = gate, turn: int = turn) -> int:
            gate.wait()
            return commit(sink, *ready, token=turn, checkpoint=turn)

        with ThreadPoolExecutor(4) as masters:
            list(masters.map(commit_at_once, range(4)))
    assert numbers(sink.path) == list(range(1, 11))
    files = [file.name for epoch in BucketCommitLog(Bucket(sink.path)).epochs(*OWNER) for file in epoch.files]
    assert len(files) == len(set(files)) == 10
    assert stored(sink.path, ".claims/") == uploads(sink.path) == []


def test_a_clean_up_aborts_the_uploads_of_ended_attempts_of_this_sink_only(sink: weir.ParquetSink) -> None:
    (kept,) = prepared(writer(sink, token=1), 1, 1)
    Bucket(sink.path).create(f".claims/{kept['final']}.claim", kept["upload"].encode())
    prepared(writer(sink, token=1, index=1), 1, 2)
    unfinished = writer(sink, token=1, index=2)
    unfinished.write(rows(3))
    unfinished.prepare(1)
    prepared(writer(sink, token=2), 1, 4)
    prepared(writer(sink, token=1, uid="other"), 1, 5)
    assert len(uploads(sink.path)) == 5
    assert sink.committer().clean(JOB, "out", Token(2), [kept]) == 2
    assert sorted(name.rsplit("-", 3)[0] for name in uploads(sink.path)) == [
        "part-job~201-1-other",
        "part-job~201-1-out",
        "part-job~201-2-out",
    ]
    assert commit(sink, kept, token=2) == 1
    assert numbers(sink.path) == [1]


def test_a_zombie_cannot_publish_what_a_newer_attempt_has_given_up(sink: weir.ParquetSink) -> None:
    (ready,) = prepared(writer(sink, token=1), 1, 1)
    sink.committer().clean(JOB, "out", Token(2), [])
    with pytest.raises(EnvironmentFailure, match="with 1 rows, is neither pending nor committed"):
        commit(sink, ready)
    assert numbers(sink.path) == []
    sink.committer().clean(JOB, "out", Token(2), [])
    assert stored(sink.path, ".claims/") == []


def test_a_writer_that_ends_leaves_no_upload_behind(sink: weir.ParquetSink) -> None:
    ending = writer(sink)
    ready = prepared(ending, 1, 1)
    ending.write(rows(2))
    ending.close()
    assert len(uploads(sink.path)) == 1, "that of the checkpoint"
    commit(sink, *ready)
    assert uploads(sink.path) == []


@pytest.mark.parametrize(
    ("request_of", "fault"),
    [
        *itertools.product(["PUT .claims", "POST uploadId=", "PUT .commit-log"], ONCE_MORE),
        ("POST uploadId=", Fault.FORGOTTEN),
    ],
)
def test_a_commit_whose_request_fails_is_exact(
    faults: Faults, sink: weir.ParquetSink, request_of: str, fault: Fault
) -> None:
    method, part = request_of.split()
    ready = prepared(writer(sink), 1, 1, 2)
    left = [fault]
    faults.rule = lambda each, path: left.pop() if left and each == method and part in path else None
    commit(sink, *ready)
    assert not left
    assert numbers(sink.path) == [1, 2]
    assert commit(sink, *ready) == 0
    assert numbers(sink.path) == [1, 2]
    assert uploads(sink.path) == stored(sink.path, ".claims/") == []


def test_a_store_whose_etags_are_no_digests_is_refused_before_the_checkpoint(
    faults: Faults, sink: weir.ParquetSink
) -> None:
    """As with encryption by a key of KMS: a repeated commit could not tell its own object from others."""
    first = writer(sink)
    faults.once("PUT", Answer(200, headers=(("ETag", f'"{"0" * 32}"'),)))
    with pytest.raises(JobRejected, match="its ETags are not the MD5 of the content"):
        prepared(first, 1, 1)
    first.close()
    assert uploads(sink.path) == []


def test_a_store_that_is_away_is_an_outage(faults: Faults, sink: weir.ParquetSink) -> None:
    ready = prepared(writer(sink), 1, 1)
    faults.rule = lambda method, path: Answer.error(503, "SlowDown")
    with pytest.raises(EnvironmentFailure, match="cannot be listed: status 503 SlowDown") as failed:
        commit(sink, *ready)
    assert is_outage(failed.value)
    faults.rule = lambda method, path: Answer.error(403, "AccessDenied")
    with pytest.raises(EnvironmentFailure, match="cannot be listed: status 403 AccessDenied") as failed:
        commit(sink, *ready)
    assert not is_outage(failed.value)


def test_pending_output_of_another_place_is_refused_and_committed_output_is_left_out(sink: weir.ParquetSink) -> None:
    pending, elsewhere = prepared(writer(sink), 1, 1), weir.ParquetSink(f"{sink.path}-2")
    with pytest.raises(JobRejected, match=rf"is pending in {sink.path}, not in {elsewhere.path}: restore it into"):
        commit(elsewhere, *pending)
    commit(sink, *pending)
    assert commit(elsewhere, *pending) == 0
    assert numbers(elsewhere.path) == []


@pytest.mark.parametrize(
    "change",
    [
        {"final": "../part-job~201-1-out-0-0-1.parquet"},
        {"final": "part-job~202-1-out-0-0-1.parquet"},
        {"etags": []},
        {"etags": ["x"]},
        {"upload": 1},
    ],
)
def test_a_manifest_is_not_trusted(sink: weir.ParquetSink, change: dict[str, Any]) -> None:
    (ready,) = prepared(writer(sink), 1, 1)
    with pytest.raises(JobRejected, match="that this sink has not written"):
        commit(sink, {**ready, **change})


def test_output_of_a_folder_is_refused_by_its_name_in_a_bucket_and_the_reverse(
    sink: weir.ParquetSink, tmp_path: Path
) -> None:
    local = weir.ParquetSink(str(tmp_path))
    for former, present in ((local, sink), (sink, local)):
        ready = prepared(writer(former), 1, 1)
        with pytest.raises(JobRejected, match=rf"output of the checkpoint belongs to {former.path}, committed or not"):
            commit(present, *ready)


def test_a_store_that_ignores_conditions_is_refused_before_a_file_is_visible(
    faults: Faults, sink: weir.ParquetSink
) -> None:
    """Such a store would replace claims, entries of the log, and versions of a Delta table."""
    ready = prepared(writer(sink), 1, 1)
    table = weir.DeltaSink(f"{sink.path}/table")
    added = prepared(writer(table), 1, 1)
    faults.rule = lambda method, path: Answer(200) if method == "PUT" and "/.weir-probe-" in path else None
    for place, committables in ((sink, ready), (table, added)):
        with pytest.raises(JobRejected, match=f"the store of {place.path} ignores If-None-Match"):
            commit(place, *committables)
    assert numbers(sink.path) == []
    assert stored(table.path, "_delta_log") == []
    faults.rule = lambda method, path: None
    assert commit(sink, *ready) == commit(table, *added) == 1
    assert [name for name in stored(sink.path, "") if ".weir-probe" in name] == []


def test_a_completion_with_another_etag_is_refused_at_once(faults: Faults, sink: weir.ParquetSink) -> None:
    ready = prepared(writer(sink), 1, 1)
    reply = Answer(200, b"<CompleteMultipartUploadResult><ETag>other-1</ETag></CompleteMultipartUploadResult>")
    faults.rule = lambda method, path: reply if method == "POST" and "uploadId=" in path else None
    with pytest.raises(JobRejected, match=r"its ETags are not the MD5 of the content \(other-1\)"):
        commit(sink, *ready)


@pytest.mark.parametrize("make", [weir.ParquetSink, lambda uri: weir.JsonLinesSink(uri, roll_on_checkpoint=True)])
def test_a_file_that_cannot_be_finished_is_discarded(faults: Faults, uri: str, make: Callable[[str], Any]) -> None:
    ending = writer(make(uri))
    ending.write(rows(1))
    faults.rule = lambda method, path: Answer.error(403, "AccessDenied") if "partNumber=" in path else None
    with pytest.raises(EnvironmentFailure, match="AccessDenied"):
        ending.prepare(1)
    assert len(uploads(uri)) == 1
    ending.close()
    assert uploads(uri) == []


def test_an_object_that_comes_and_goes_is_an_outage(faults: Faults, uri: str) -> None:
    Bucket(uri).put("x", b"1")
    faults.rule = lambda method, path: Answer(404) if method == "HEAD" else None
    with pytest.raises(EnvironmentFailure, match="the store lists it, and answers that it is missing") as failed:
        Bucket(uri).find("x")
    assert is_outage(failed.value)


def test_a_deletion_of_objects_has_an_md5(faults: Faults, uri: str) -> None:
    """Servers that are older than checksums of other kinds insist on it."""
    Bucket(uri).put("x", b"1")
    Bucket(uri).delete(["x"])
    assert stored(uri, "") == []
    assert [path for path in faults.without_md5 if path.endswith("?delete")] == []


def test_the_endpoint_is_that_of_all_parts_of_weir(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert Bucket(uri)._client.meta.endpoint_url.endswith(".amazonaws.com")


PARTITIONED: dict[str, Callable[[str], Any]] = {
    "Parquet": lambda uri: weir.ParquetSink(uri, partition_by=("day",)),
    "JSON lines": lambda uri: weir.JsonLinesSink(uri, partition_by=("day",), roll_on_checkpoint=True),
    "Delta": lambda uri: weir.DeltaSink(uri, partition_by=("day",)),
}


@pytest.mark.parametrize("kind", PARTITIONED)
def test_partitions_in_turn_have_a_file_each_while_their_bytes_fit_into_memory(
    uri: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = pa.RecordBatch.from_pydict({"n": list(range(30)), "day": [f"d{number}" for number in range(30)]})

    def count(place: str) -> int:
        writing = writer(PARTITIONED[kind](place))
        for _ in range(2):
            writing.write(batch)
        ready = writing.prepare(1)
        return sum(len(each.get("files", [1])) for each in ready)

    assert count(f"{uri}/1") == 30
    monkeypatch.setattr(bucket_file, "MAX_BUFFERED_BYTES", 1)
    monkeypatch.setattr(row_files, "ENCODED_BYTES", 1)  # else the rows wait, and no bytes
    monkeypatch.setattr(table_writer, "ROW_GROUP_BYTES", 1)
    assert count(f"{uri}/2") == 60


def test_unsent_bytes_of_all_open_files_count(uri: str) -> None:
    opened_files, uploads_of_writer = [], bucket_file.OpenUploads()
    while not uploads_of_writer.are_full:
        opened_files.append(bucket_file.BucketFile(Bucket(uri), "x", uploads_of_writer))
        opened_files[-1].write(bytes(PART_BYTES - 1))
    assert len(opened_files) == 21
    opened_files[0].discard()
    assert not uploads_of_writer.are_full


def test_parts_grow_so_that_an_upload_holds_large_files() -> None:
    assert bucket_file.part_bytes(0) == bucket_file.part_bytes(999) == PART_BYTES
    assert sum(map(bucket_file.part_bytes, range(10_000))) == 440_000 << 20


REFUSALS: dict[str, tuple[Callable[[str], Any], str]] = {
    "files that grow": (weir.JsonLinesSink, "roll_on_checkpoint: must be True in a bucket"),
    "dead letters of functions": (lambda uri: weir.SetAside(uri).sink(), "must be a folder: the console reads"),
    "compaction": (lambda uri: weir.ParquetSink(uri, compact_checkpoints=3), "compact_checkpoints: needs a folder"),
    "another scheme": (
        lambda uri: weir.ParquetSink(uri.replace("s3:", "gs:")),
        r"path: .* must be a folder or s3://bucket/prefix, without a login",
    ),
    "a bucket": (
        lambda uri: weir.ParquetSink("s3://weir"),
        r"path: .* must be a folder or s3://bucket/prefix, without a login",
    ),
    "a key": (
        lambda uri: weir.ParquetSink("s3://a:b@weir/x"),
        r"path: .* must be a folder or s3://bucket/prefix, without a login",
    ),
    "another place": (lambda uri: weir.ParquetSink("s3://other/x"), "path: s3://other/x is not a URL that jobs may"),
    "a table elsewhere": (lambda uri: weir.DeltaSink("s3://other/x"), "path: s3://other/x is not a URL that jobs may"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_what_a_bucket_cannot_hold_is_refused_by_name(uri: str, refusal: str) -> None:
    make, message = REFUSALS[refusal]
    with pytest.raises(JobRejected, match=message):
        make(uri).check()


@pytest.mark.parametrize("make", [weir.ParquetSink, weir.DeltaSink])
def test_a_place_that_is_taken_off_the_list_is_not_written(
    uri: str, make: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version was compiled before: each slot and each commit checks the place again."""
    sink = make(uri)
    first = writer(sink)
    ready = prepared(first, 1, 1)
    monkeypatch.setenv(DATA_URLS_VARIABLE, "s3://other")
    before, begun = stored(uri, ""), uploads(uri)
    for use in (lambda: writer(sink), lambda: prepared(first, 2, 2), lambda: commit(sink, *ready)):
        with pytest.raises(JobRejected, match="is not a URL that jobs may use"):
            use()
    assert (stored(uri, ""), uploads(uri)) == (before, begun)


def test_the_storage_of_checkpoints_is_refused(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_STORAGE", uri.rpartition("/")[0])
    with pytest.raises(JobRejected, match="overlaps the storage of checkpoints"):
        weir.ParquetSink(uri).check()


def test_a_job_writes_into_a_bucket(uri: str, tmp_path: Path) -> None:
    flow = weir.Dataflow("job")
    flow.source("in", weir.SequenceSource(rows=1_000)).sink("out", weir.ParquetSink(uri))
    weir.run_local(flow, parallelism=2, storage=str(tmp_path))
    assert numbers(uri, "id") == list(range(1_000))
    assert uploads(uri) == []


def test_a_missing_bucket_is_named(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_URLS_VARIABLE, "s3://no-such-bucket")
    flow = weir.Dataflow("job")
    flow.source("in", weir.SequenceSource(rows=10)).sink("out", weir.ParquetSink("s3://no-such-bucket/x"))
    with pytest.raises(WeirError, match=r"no-such-bucket.*NoSuchBucket"):
        weir.run_local(flow, storage=str(tmp_path))
