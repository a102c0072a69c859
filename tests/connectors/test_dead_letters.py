"""Dead letters of a source in a bucket of a real S3 server."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from runtime.access.data_roots import DATA_URLS_VARIABLE
from runtime.connectors.bucket import Bucket
from runtime.connectors.dead_letters import open_dead_letters
from runtime.connectors.formats import Malformed
from runtime.errors import JobRejected
from runtime.s3 import PART_BYTES
from tests.contracts.test_sinks import context
from tests.s3 import BUCKET

BAD = Malformed(row=0, column="n", reason="no number", text="x")


@pytest.fixture
def uri(bucket_uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(DATA_URLS_VARIABLE, f"s3://{BUCKET}")
    return f"{bucket_uri}/letters"


def letters_in(uri: str) -> list[dict[str, object]]:
    bucket = Bucket(uri)
    return [json.loads(line) for name in bucket.names() for line in (bucket.read(name) or b"").splitlines()]


def source(folder: Path, letters: str) -> weir.DirectorySource:
    schema = pa.schema([("n", pa.int64())])
    return weir.DirectorySource(
        str(folder), weir.JsonLinesFormat(schema), bounded=True, on_malformed="dead_letter", dead_letter_path=letters
    )


def test_a_job_puts_each_malformed_row_into_the_bucket(uri: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(4):
        good = "".join(f'{{"n": {each}}}\n' for each in range(50))
        (tmp_path / "in" / f"{number}.jsonl").write_text(f'{good}{{"n": "bad {number}"}}\n{good}')
    collected = weir.CollectSink()
    flow = weir.Dataflow("job")
    flow.source("in", source(tmp_path / "in", uri)).sink("out", collected)
    weir.run_local(flow, parallelism=2, storage=str(tmp_path / "state"))
    assert collected.table().num_rows == 400
    assert sorted((Path(str(each["file"])).name, each["row"]) for each in letters_in(uri)) == [
        (f"{number}.jsonl", 51) for number in range(4)
    ]


def test_letters_are_durable_at_a_checkpoint_in_objects_that_no_run_overwrites(uri: str) -> None:
    first, other = (open_dead_letters(uri, context("7", 1, "in", 0)) for _ in range(2))
    first.write("a", [BAD])
    assert letters_in(uri) == []
    first.sync()
    first.sync()
    other.write("b", [BAD])
    other.sync()
    assert Bucket(uri).names() == ["7-1-in-0-1.jsonl", "7-1-in-0-2.jsonl"]
    assert [each["file"] for each in letters_in(uri)] == ["a", "b"]


def test_many_letters_do_not_wait_for_a_checkpoint_in_memory(uri: str) -> None:
    letters = open_dead_letters(uri, context("7", 1, "in", 0))
    letters.write("a", [Malformed(row=0, column="n", reason="no number", text="x" * PART_BYTES)])
    assert len(letters_in(uri)) == 1


@pytest.mark.parametrize(
    ("letters", "message"),
    [
        ("gs://b/letters", "must be a folder or s3://bucket/prefix"),
        ("s3://elsewhere/letters", "dead_letter_path: s3://elsewhere/letters is not a URL that jobs may use"),
        (
            "s3://key:secret@b/letters",
            "dead_letter_path: s3://b/letters must be a folder or s3://bucket/prefix, without",
        ),
    ],
)
def test_another_place_is_refused_by_name(uri: str, letters: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(JobRejected, match=message):
        source(tmp_path, letters).check()


def test_letters_in_the_prefix_of_the_source_are_refused(uri: str) -> None:
    """By whatever credentials and parameters: they would be read as input, without end."""
    bounded = replace(source(Path(), f"{uri}/"), path=f"{uri}?endpoint_override=127.0.0.1:1&scheme=http")
    with pytest.raises(JobRejected, match="dead_letter_path: dead letters would be read as input"):
        bounded._check_policy()
