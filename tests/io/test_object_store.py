"""Checkpoints in a bucket where requests fail: a real S3 server behind a proxy that loses, refuses and stalls."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from runtime.errors import CorruptState, EnvironmentFailure, is_outage
from runtime.io import object_store
from runtime.io.object_store import ObjectStore
from runtime.ports import SnapshotStore
from runtime.s3 import PART_BYTES
from tests.kafka import free_port
from tests.s3 import BUCKET, S3Server, environment_of
from tests.s3_proxy import ONCE_MORE, Answer, Fault, Faults, faulty_proxy


@pytest.fixture
def faults(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    with faulty_proxy(s3_server) as (port, faults):
        for name, value in environment_of(port).items():
            monkeypatch.setenv(name, value)
        yield faults


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def store(prefix: str) -> ObjectStore:
    return ObjectStore(f"s3://{BUCKET}/{prefix}")


@pytest.mark.parametrize("fault", ONCE_MORE)
def test_a_request_that_fails_once_is_repeated(faults: Faults, store: ObjectStore, fault: Fault) -> None:
    faults.once("PUT", fault)
    store.put("chk-1/a", [b"x"])
    faults.once("GET", fault)
    assert store.get("chk-1/a") == b"x"
    faults.once("GET", fault)
    assert store.sizes("chk-1/") == {"chk-1/a": 1}
    faults.once("POST", fault)
    store.delete(["chk-1/a"])
    assert store.list("") == []
    assert faults.requests["PUT"] == 2


@pytest.mark.parametrize("fault", ONCE_MORE)
def test_a_creation_whose_reply_is_lost_succeeds_and_one_that_comes_later_does_not(
    faults: Faults, store: ObjectStore, fault: Fault
) -> None:
    faults.once("PUT", fault)
    assert store.create("claim", b"mine")
    faults.once("PUT", fault)
    assert not store.create("claim", b"of another")
    assert store.get("claim") == b"mine"


def test_a_creation_that_never_gets_a_reply_is_read_back(
    faults: Faults, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.rule = lambda method, path: Fault.LOST_REPLY if method == "PUT" else None
    assert store.create("claim", b"mine")
    faults.rule = lambda method, path: Fault.LOST_REQUEST if method == "PUT" else None
    with pytest.raises(EnvironmentFailure, match="claim-2 cannot be created") as failed:
        store.create("claim-2", b"mine")
    assert is_outage(failed.value)


@pytest.mark.parametrize("fault", ONCE_MORE)
@pytest.mark.parametrize("step", ["uploads", "partNumber=", "uploadId="])
def test_an_upload_in_parts_survives_a_request_that_fails(
    faults: Faults, store: ObjectStore, step: str, fault: Fault
) -> None:
    left = [fault]
    faults.rule = lambda method, path: left.pop() if left and step in path else None
    store.put("large", [b"x" * PART_BYTES] * 3)
    assert not left
    assert store.sizes("") == {"large": 3 * PART_BYTES}


def test_an_upload_that_the_server_has_forgotten_is_an_outage_and_no_missing_file(
    faults: Faults, store: ObjectStore
) -> None:
    """A server may answer so if it has completed the upload and its reply was lost. The file is written again."""
    left = [Fault.FORGOTTEN]
    faults.rule = lambda method, path: left.pop() if left and method == "POST" and "uploadId=" in path else None
    with pytest.raises(EnvironmentFailure, match="large cannot be written: status 404 NoSuchUpload") as failed:
        store.put("large", [b"x" * PART_BYTES] * 3)
    assert is_outage(failed.value)
    assert not isinstance(failed.value, CorruptState)
    store.put("large", [b"x" * PART_BYTES] * 3)
    assert store.sizes("") == {"large": 3 * PART_BYTES}


CALLS: dict[str, Callable[[SnapshotStore], object]] = {
    "put": lambda store: store.put("a", [b"x"]),
    "put in parts": lambda store: store.put("a", [b"x" * PART_BYTES] * 3),
    "create": lambda store: store.create("new", b"x"),
    "get": lambda store: store.get("a"),
    "get_range": lambda store: store.get_range("a", 0, 1),
    "sizes": lambda store: store.sizes(""),
    "delete": lambda store: store.delete(["a"]),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_is_away_is_an_outage(
    store: ObjectStore, call: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment_of(free_port()).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentFailure, match="cannot be") as failed:
        CALLS[call](store)
    assert is_outage(failed.value), failed.value
    assert not isinstance(failed.value, CorruptState)


@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_answers_503_is_an_outage(faults: Faults, store: ObjectStore, call: str) -> None:
    faults.rule = lambda method, path: Fault.UNAVAILABLE
    with pytest.raises(EnvironmentFailure, match="status 503 SlowDown") as failed:
        CALLS[call](store)
    assert is_outage(failed.value), failed.value


TEMPORARY_ANSWERS = {
    "a gateway without its server": Answer(404, b"404 page not found"),
    "a gateway that is empty": Answer(404),
    "a slow request": Answer.error(400, "RequestTimeout"),
    "a concurrent request": Answer.error(409, "OperationAborted"),
    "a concurrent condition": Answer.error(409, "ConditionalRequestConflict"),
}
LASTING_ANSWERS = {
    "a redirect to nowhere": Answer.error(301, "PermanentRedirect"),
    "a redirect with a location": Answer.error(307, "TemporaryRedirect"),
    "another region": Answer.error(400, "AuthorizationHeaderMalformed"),
    "an unknown object for a write": Answer.error(404, "NoSuchWebsiteConfiguration"),
    "a refusal": Answer.error(403, "AccessDenied"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("answer", TEMPORARY_ANSWERS.values(), ids=TEMPORARY_ANSWERS)
def test_an_answer_that_passes_is_an_outage_and_no_missing_file(
    faults: Faults, store: ObjectStore, call: str, answer: Answer
) -> None:
    """A missing file ends a run at its final savepoint, and lets a restore take an earlier checkpoint."""
    faults.rule = lambda method, path: answer
    with pytest.raises(EnvironmentFailure, match=f"cannot be .*{answer.status}") as failed:
        CALLS[call](store)
    assert is_outage(failed.value), failed.value
    assert not isinstance(failed.value, CorruptState)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("answer", LASTING_ANSWERS.values(), ids=LASTING_ANSWERS)
def test_an_answer_that_lasts_needs_a_person(faults: Faults, store: ObjectStore, call: str, answer: Answer) -> None:
    faults.rule = lambda method, path: answer
    with pytest.raises(EnvironmentFailure, match="cannot be") as failed:
        CALLS[call](store)
    assert not is_outage(failed.value), failed.value
    assert not isinstance(failed.value, CorruptState)


def test_a_deletion_that_is_refused_for_an_object_names_it(faults: Faults, store: ObjectStore, prefix: str) -> None:
    faults.rule = lambda method, path: Answer.refused_key(f"{prefix}/chk-1/b", "AccessDenied")
    with pytest.raises(EnvironmentFailure, match=r"chk-1 \(2 objects\) cannot be deleted: .*/chk-1/b") as failed:
        store.delete(["chk-1/a", "chk-1/b"])
    assert not is_outage(failed.value)


def test_a_server_that_refuses_to_delete_a_missing_object_deletes_the_others(
    faults: Faults, store: ObjectStore, prefix: str
) -> None:
    """Garage answers so. The library passes on the first error only."""
    store.put("chk-1/a", [b"x"])
    store.put("chk-1/c", [b"x"])
    faults.once("POST", Answer.refused_key(f"{prefix}/chk-1/b", "NoSuchKey"))
    store.delete(["chk-1/a", "chk-1/b"])
    assert store.list("") == ["chk-1/c"]
    refusal = Answer.refused_key(f"{prefix}/chk-1/c", "NoSuchKey")
    faults.rule = lambda method, path: refusal if method == "POST" else None
    with pytest.raises(EnvironmentFailure, match="chk-1/c cannot be deleted"):
        store.delete(["chk-1/c"])


def test_a_creation_that_conflicts_with_an_object_that_is_not_there_is_an_outage(
    faults: Faults, store: ObjectStore
) -> None:
    faults.once("PUT", Answer.error(409, "ConditionalRequestConflict"))
    with pytest.raises(EnvironmentFailure, match="claim cannot be created") as failed:
        store.create("claim", b"mine")
    assert is_outage(failed.value)
    assert not isinstance(failed.value, CorruptState)
    assert store.create("claim", b"mine")


@pytest.mark.parametrize("endpoint", ["localhost:8333", "http://", "http://a b", "http://[a", "ftp://host"])
def test_an_endpoint_that_is_no_url_of_a_server_is_refused_by_name(
    store: ObjectStore, endpoint: str, bucket_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(EnvironmentFailure, match="AWS_ENDPOINT_URL") as failed:
        store.get("a")
    assert not is_outage(failed.value)


def test_a_setting_that_the_library_refuses_needs_a_person(
    store: ObjectStore, bucket_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "perhaps")
    with pytest.raises(EnvironmentFailure, match="perhaps") as failed:
        store.get("a")
    assert not is_outage(failed.value)


@pytest.mark.parametrize("read", ["whole", "range"])
def test_a_read_may_take_longer_than_a_request(
    faults: Faults, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """Each part is a request of its own, with its own time and its own repeats."""
    monkeypatch.setattr(object_store, "CALL_TIMEOUT_S", 6)
    monkeypatch.setattr(object_store, "RETRY_TIMEOUT_S", 1)
    content = os.urandom(4 * PART_BYTES + 3)
    store.put("large", [content])
    faults.pause_s = 0.25
    faults.rule = lambda method, path: Fault.SLOW
    if read == "whole":
        assert store.get("large") == content
    else:
        assert store.get_range("large", 5, len(content)) == content[5:]


@pytest.mark.slow
def test_a_part_may_take_a_while_to_be_sent(faults: Faults, store: ObjectStore) -> None:
    """The time for a reply runs from the start of the request."""
    faults.rule = lambda method, path: Fault.SLOW if "partNumber=" in path else None
    faults.pause_s = 1.5
    nbytes = 2 * PART_BYTES + 3
    store.put("large", [bytes(nbytes)])
    assert store.sizes("") == {"large": nbytes}
    assert faults.requests["PUT"] == 3


@pytest.mark.parametrize("call", CALLS)
def test_a_bucket_that_is_missing_needs_a_person(call: str, bucket_uri: str) -> None:
    """It must not look like a file that is missing, or a restore would take an earlier checkpoint."""
    with pytest.raises(EnvironmentFailure, match="status 404 NoSuchBucket") as failed:
        CALLS[call](ObjectStore("s3://no-such-bucket/job"))
    assert not isinstance(failed.value, CorruptState)
    assert not is_outage(failed.value)


@pytest.mark.parametrize("call", CALLS)
def test_a_key_that_is_refused_needs_a_person(
    store: ObjectStore, call: str, bucket_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-another")
    with pytest.raises(EnvironmentFailure, match="status 403 SignatureDoesNotMatch") as failed:
        CALLS[call](store)
    assert not isinstance(failed.value, CorruptState)
    assert not is_outage(failed.value)
    assert "of-another" not in str(failed.value)


def test_a_host_without_credentials_is_told_so(
    store: ObjectStore, bucket_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(EnvironmentFailure, match=r"a cannot be read: .*Missing AccessKeyId") as failed:
        store.get("a")
    assert not is_outage(failed.value)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(EnvironmentFailure, match="the environment has no AWS_ACCESS_KEY_ID, and no instance role"):
        ObjectStore(f"s3://{BUCKET}/{uuid.uuid4().hex}").get("a")


def test_a_reply_that_stalls_is_awaited_for_a_bounded_time(
    faults: Faults, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "READ_TIMEOUT_S", 1)
    store.put("a", [b"x"])
    began = time.monotonic()
    with faults.stall.closed(), pytest.raises(EnvironmentFailure) as failed:
        store.get("a")
    assert is_outage(failed.value)
    assert 1 <= time.monotonic() - began < 30
    assert store.get("a") == b"x"


def test_an_upload_that_fails_leaves_no_parts(s3_server: S3Server, bucket_uri: str) -> None:
    def half() -> Iterator[bytes]:
        yield b"x" * 2 * PART_BYTES
        raise RuntimeError("the state could not be encoded")

    store = ObjectStore(bucket_uri)
    with pytest.raises(RuntimeError, match="encoded"):
        store.put("large", half())
    uploads = s3_server.client().list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    assert [upload for upload in uploads if upload["Key"].startswith(bucket_uri.split("/", 3)[3])] == []


FORK = """
import os, sys
from runtime.io.object_store import ObjectStore
store = ObjectStore(sys.argv[1])
if sys.argv[2] == "used":
    store.put("parent", [b"x"])
if not (child := os.fork()):
    try:
        store.put("child", [b"x"])
        print("stored", flush=True)
    except BaseException as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize(("before", "outcome"), [("unused", "stored"), ("used", "this process was forked from one")])
def test_a_fork_of_a_process_that_has_used_the_store_is_refused(bucket_uri: str, before: str, outcome: str) -> None:
    """Its calls would wait for threads that a fork does not have. Slots are forked from a process without any."""
    command = [sys.executable, "-c", FORK, bucket_uri, before]
    process = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=True, timeout=60)
    assert outcome in process.stdout
