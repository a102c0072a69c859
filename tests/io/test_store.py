"""Storage by URI: what is taken, and what is refused without I/O."""

import subprocess
import sys
from pathlib import Path

import pytest

from runtime.errors import JobRejected
from runtime.io.filesystem import FileStore
from runtime.io.object_store import ObjectStore
from runtime.io.store import check_folder_storage, open_store, storage_uri
from runtime.s3 import is_bucket


@pytest.mark.parametrize(
    ("storage", "normal"),
    [
        ("/data/state", "/data/state"),
        ("file:///data/a%20b", "/data/a b"),
        ("s3://bucket/state/7", "s3://bucket/state/7"),
        ("s3://bucket/state/", "s3://bucket/state"),
        ("file:///data/state/", "/data/state"),
        ("state", str(Path("state").absolute())),
    ],
)
def test_the_normal_form_of_a_storage(storage: str, normal: str) -> None:
    assert storage_uri("storage", storage) == normal
    assert is_bucket(normal) is storage.startswith("s3:")
    assert isinstance(open_store(storage), ObjectStore if is_bucket(normal) else FileStore)


@pytest.mark.parametrize(
    "storage",
    [
        "gs://bucket/state",
        "hdfs://host/state",
        "file://host/state",
        "file:///state?x=1",
        "s3://bucket",
        "s3://bucket/",
        "s3://key:secret@bucket/state",
        "s3://bucket/state?region=eu",
        "s3://bucket/a/../b",
        "s3://bucket//state",
        "S3://bucket/state",
        "s3:bucket/state",
        "s3://bucket/st\tate",
        "s3://bucket/state\n",
        "s3://bucket/state ",
        "file:///st\tate",
    ],
)
def test_another_form_is_refused_by_name(storage: str) -> None:
    """A prefix is needed: the storage of a job is swept, and a bucket may hold other objects."""
    with pytest.raises(JobRejected, match=r"is no storage for checkpoints: name a folder, file:///") as refused:
        open_store(storage)
    assert (refused.value.code, refused.value.field) == ("bad-storage", "storage")


def test_a_missing_library_names_its_extra() -> None:
    program = "import sys; sys.modules['obstore'] = None; from runtime.io.store import open_store; open_store('s3://bucket/s')"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert process.stderr.rstrip().endswith("pip install 'weir-streams[cloud]'")


def test_what_needs_a_folder_refuses_a_bucket_by_name() -> None:
    check_folder_storage("storage", "/data/state")
    with pytest.raises(JobRejected, match=r"s3://bucket/state: a bucket is not supported here; name a folder"):
        check_folder_storage("storage", "s3://bucket/state")
