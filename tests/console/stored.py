"""Checkpoints in storage as their rows describe them: a manifest, and a file of the right length for each state."""

import functools
from pathlib import Path
from typing import Any, Final

from django.conf import settings

from console.checkpoints.models import Checkpoint
from console.checkpoints.storage import job_store, job_uri
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.checksums import Checksum
from runtime.core.snapshot.manifest import FinishedState, Manifest, OperatorSnapshot, Segment, SubtaskSnapshot
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, encode_manifest
from runtime.s3 import is_bucket


def job_root(job_id: int) -> Path:
    """The storage of a job, as a folder."""
    return Path(job_uri(job_id))


ROW_BYTES: Final = 112
MAX_VERIFIED_BYTES: Final = 1 << 20


def store(row: Checkpoint, base: Checkpoint | None = None, **changes: Any) -> None:
    """Writes what `row` stands for, with `changes` to its manifest.

    With a `base`, which may be `row` itself, state that `row` did not write is in files of `base`.
    """
    operators = {entry["uid"]: _operator(row, entry, base) for entry in row.operators}
    manifest = Manifest(**{
        "job": str(row.job_id), "checkpoint": row.number, "kind": CheckpointKind(row.kind), "token": row.token,
        "triggered_at": 0, "max_parallelism": row.max_parallelism, "operators": operators, **changes,
    })  # fmt: skip
    job_store(row.job_id).put(f"{row.path}/{MANIFEST_FILE}", [encode_manifest(manifest)])


def _operator(row: Checkpoint, entry: dict[str, Any], base: Checkpoint | None) -> OperatorSnapshot:
    """State without a size is a list."""
    finished = FinishedState(entry.get("finished", "running"))
    nbytes = entry.get("state_bytes") or 0
    lists: dict[str, tuple[Any, ...]] = {"list": (1,)} if entry.get("has_state") and not nbytes else {}
    count = entry.get("subtasks") or 1
    subtasks = {}
    for index in range(count):
        subtask_bytes = nbytes * (index + 1) // count - nbytes * index // count
        new = min(subtask_bytes, (entry.get("written_bytes") or 0) // count) if base else subtask_bytes
        parts = ((base, "state", subtask_bytes - new), (row, "changes" if base else "state", new))
        segments = tuple(
            _segment(of, f"{entry['uid']}-{index}/{name}", size) for of, name, size in parts if of and size
        )
        keyed: dict[str, tuple[Segment, ...]] = {"state": segments} if segments else {}
        subtasks[index] = SubtaskSnapshot(
            finished=finished is FinishedState.FINISHED, keyed=keyed, lists={} if index else lists
        )
    return OperatorSnapshot(parallelism=count, finished=finished, subtasks=subtasks)


def _segment(row: Checkpoint, name: str, nbytes: int) -> Segment:
    path = f"{row.path}/{name}.arrow"
    if is_bucket(str(settings.WEIR_STORAGE)):
        job_store(row.job_id).put(path, [bytes(nbytes)])
    else:
        file = job_root(row.job_id) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as stream:
            stream.truncate(nbytes)  # states of gigabytes take no space
    rows, checksum = -(-nbytes // ROW_BYTES), _checksum_of_zeroes(nbytes)
    return Segment(path=path, rows=rows, nbytes=nbytes, checksum=checksum, first_group=0, last_group=127)


@functools.lru_cache(maxsize=1_000)
def _checksum_of_zeroes(nbytes: int) -> str:
    """No test copies or verifies a larger file."""
    return Checksum(bytes(nbytes)).text if nbytes <= MAX_VERIFIED_BYTES else "blake2b:00"
