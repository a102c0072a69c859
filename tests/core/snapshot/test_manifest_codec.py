"""A manifest as bytes: what is not whole is told apart from what is not ours to read."""

import msgspec
import pytest

from runtime.core.checkpoint.retention_plan import files_of
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.manifest import FORMAT_VERSION, Manifest, SubtaskSnapshot, folder_of, parse_folder
from runtime.core.snapshot.manifest_codec import (
    decode_manifest,
    encode_manifest,
    manifest_folder,
    parse_keys,
    relative_paths,
    self_contained_manifest,
)
from runtime.errors import CorruptState, JobRejected
from tests.core.builders import SNAPSHOT, manifest, segment

MADE = manifest({"a": [SNAPSHOT]}, checkpoint=7, token=3)


def test_what_was_sealed_is_opened() -> None:
    assert decode_manifest(encode_manifest(MADE), "m.json") == MADE


def test_every_shorter_file_is_refused_by_name() -> None:
    data = encode_manifest(MADE)
    for end in range(len(data)):
        with pytest.raises(CorruptState, match=r"^m\.json: "):
            decode_manifest(data[:end], "m.json")


@pytest.mark.parametrize("change", [(b'"checkpoint":7', b'"checkpoint":8'), (b'"format":1', b'"format":9')])
def test_an_altered_manifest_is_refused_by_name(change: tuple[bytes, bytes]) -> None:
    data = encode_manifest(MADE)
    assert change[0] in data
    with pytest.raises(CorruptState, match=r"m\.json: the checksum does not match"):
        decode_manifest(data.replace(*change), "m.json")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"checksum":1,"manifest":{}}'])
def test_what_never_was_a_manifest_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(CorruptState, match=r"m\.json: not a readable manifest"):
        decode_manifest(data, "m.json")


@pytest.mark.parametrize("other", [FORMAT_VERSION - 1, FORMAT_VERSION + 1])
def test_another_format_is_refused_by_its_number_although_it_cannot_be_read(other: int) -> None:
    """Nothing but its format is looked at: the rest may have any form."""
    body = msgspec.json.encode({"format": other, "operators": "elsewhere"})
    checksum = msgspec.json.decode(encode_manifest(MADE))["checksum"]
    content = b'{"checksum":"%s","manifest":%s}' % (_checksum_of(body).encode(), body)
    assert checksum not in content.decode()
    with pytest.raises(JobRejected) as error:
        decode_manifest(content, "m.json")
    assert (error.value.code, error.value.field) == ("other-format", "m.json")
    assert f"format {other}, this version reads format {FORMAT_VERSION}" in str(error.value)


def _checksum_of(body: bytes) -> str:
    import hashlib

    return "blake2b:" + hashlib.blake2b(body, digest_size=16).hexdigest()


# ---------------------------------------------------------------- savepoints that were moved


def savepoint(*paths: str, kind: CheckpointKind = CheckpointKind.SAVEPOINT) -> Manifest:
    snapshot = SubtaskSnapshot(keyed={"k": tuple(segment(path) for path in paths)})
    return manifest({"a": [snapshot]}, checkpoint=7, token=3, kind=kind)


@pytest.mark.parametrize("kind", [CheckpointKind.SAVEPOINT, CheckpointKind.STOP, CheckpointKind.DRAIN])
def test_the_files_of_a_savepoint_lie_in_its_own_folder_whatever_that_is_called(kind: CheckpointKind) -> None:
    manifest = savepoint("savepoint-7-3/a-0/k-1.arrow", kind=kind)
    assert manifest_folder(manifest) == "savepoint-7-3"
    assert relative_paths(manifest, "m.json") == {"savepoint-7-3/a-0/k-1.arrow": "a-0/k-1.arrow"}


def test_what_ended_subtasks_left_with_older_checkpoints_is_gathered_into_the_folder() -> None:
    manifest = savepoint("savepoint-7-3/a-0/k.arrow", "chk-5-3/a-1/k.arrow")
    gathered, origins = self_contained_manifest(manifest)
    assert {new: old.path for new, old in origins.items()} == {
        "savepoint-7-3/chk-5-3/a-1/k.arrow": "chk-5-3/a-1/k.arrow"
    }
    assert set(relative_paths(gathered, "m.json").values()) == {"a-0/k.arrow", "chk-5-3/a-1/k.arrow"}
    assert self_contained_manifest(gathered) == (gathered, {})


def test_an_inline_segment_is_no_file_and_becomes_one_in_a_savepoint() -> None:
    manifest = savepoint("savepoint-7-3/a-0/k.arrow", "chk-5-3/a-1/k.arrow").with_segments(
        lambda part: msgspec.structs.replace(part, content=b"rows") if part.path.startswith("chk-5") else part
    )
    assert decode_manifest(encode_manifest(manifest), "m.json") == manifest
    assert files_of(manifest) == {"savepoint-7-3/a-0/k.arrow", "savepoint-7-3/manifest.json"}
    gathered, origins = self_contained_manifest(manifest)
    assert [origin.content for origin in origins.values()] == [b"rows"]
    assert len(gathered.files()) == len(gathered.segments()) == 2


@pytest.mark.parametrize("path", ["chk-6-3/a-0/k.arrow", "savepoint-7-3/../../secret", "/etc/passwd"])
def test_a_savepoint_that_names_files_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(JobRejected, match="outside its own folder") as error:
        relative_paths(savepoint(path), "m.json")
    assert error.value.code == "not-a-savepoint"


def test_a_periodic_checkpoint_cannot_be_moved() -> None:
    with pytest.raises(JobRejected, match="only a savepoint can be moved"):
        relative_paths(MADE, "m.json")


# ---------------------------------------------------------------- signatures and names

OURS, OLDER, THEIRS = (bytes([letter]) * 32 for letter in b"abc")


def test_a_signed_manifest_is_opened_with_each_key_that_may_verify() -> None:
    assert decode_manifest(encode_manifest(MADE, (OURS,)), "m.json", (OURS,), signed=True) == MADE
    assert decode_manifest(encode_manifest(MADE, (OLDER,)), "m.json", (OURS, OLDER), signed=True) == MADE
    assert decode_manifest(encode_manifest(MADE, (OURS,)), "m.json") == MADE, "software without a key reads it"


@pytest.mark.parametrize("signed", [False, True])
def test_a_manifest_that_somebody_else_sealed_is_refused(signed: bool) -> None:
    """Its checksum is right: whoever writes a manifest computes one."""
    with pytest.raises(JobRejected, match="no key in WEIR_MANIFEST_KEY verifies its signature") as error:
        decode_manifest(encode_manifest(MADE, (THEIRS,)), "m.json", (OURS,), signed=signed)
    assert error.value.code == "not-signed"


def test_a_signature_is_good_for_one_manifest() -> None:
    other = msgspec.json.decode(encode_manifest(msgspec.structs.replace(MADE, checkpoint=8)))
    stolen = msgspec.json.decode(encode_manifest(MADE, (OURS,)))["signature"]
    with pytest.raises(JobRejected, match="no key in WEIR_MANIFEST_KEY verifies its signature"):
        decode_manifest(msgspec.json.encode({**other, "signature": stolen}), "m.json", (OURS,))


def test_a_manifest_older_than_the_key_is_read_in_our_storage_and_not_from_elsewhere() -> None:
    assert decode_manifest(encode_manifest(MADE), "m.json", (OURS,)) == MADE
    with pytest.raises(JobRejected, match="carries no signature"):
        decode_manifest(encode_manifest(MADE), "m.json", (OURS,), signed=True)


def test_keys_are_separated_by_commas_and_long_enough() -> None:
    assert parse_keys("") == ()
    assert parse_keys(f"{'a' * 32}, {'b' * 40}") == (b"a" * 32, b"b" * 40)
    with pytest.raises(ValueError, match="32 characters"):
        parse_keys("short")


@pytest.mark.parametrize("path", ["/etc/passwd", "../../victim.txt", "a-0/../../victim.txt", "a//b", "", "a\0b"])
def test_a_manifest_that_names_files_outside_the_storage_is_refused(path: str) -> None:
    snapshot = SubtaskSnapshot(keyed={"k": (segment(path),)})
    with pytest.raises(JobRejected, match="path that no checkpoint has") as error:
        decode_manifest(encode_manifest(manifest({"a": [snapshot]}, checkpoint=7, token=3)), "m.json")
    assert error.value.code == "bad-path"


def test_a_savepoint_written_outside_of_a_job_has_a_folder_of_its_own() -> None:
    """Two of them may have the same numbers, and both may lie in the storage of one job."""
    stored_manifest = msgspec.structs.replace(
        manifest({"a": [SNAPSHOT]}), kind=CheckpointKind.SAVEPOINT, token=0, variant="1f0c"
    )
    assert manifest_folder(stored_manifest) == f"savepoint-{stored_manifest.checkpoint}-0-1f0c"
    assert parse_folder(manifest_folder(stored_manifest)) == (stored_manifest.checkpoint, 0)
    assert decode_manifest(encode_manifest(stored_manifest), "it") == stored_manifest
    assert folder_of(CheckpointKind.SAVEPOINT, 1, 2) == "savepoint-1-2"


@pytest.mark.parametrize("folder", ["chk-1-0-1f0c", "savepoint-1-0-1f-0c", "savepoint-1-0-", "savepoint-1", "a-1-2"])
def test_other_folders_are_not_ours(folder: str) -> None:
    assert parse_folder(folder) is None


@pytest.mark.parametrize("variant", ["..", "a/b", "a-b", "ä"])
def test_a_variant_that_is_no_name_is_refused(variant: str) -> None:
    stored_manifest = msgspec.structs.replace(
        manifest({"a": [SNAPSHOT]}), kind=CheckpointKind.SAVEPOINT, variant=variant
    )
    with pytest.raises(JobRejected, match="no savepoint has a folder with"):
        decode_manifest(encode_manifest(stored_manifest), "it")
