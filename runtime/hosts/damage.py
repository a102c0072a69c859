"""A checkpoint that cannot be read: what is said about it, and which one before it could be restored instead.

It decides nothing: whether the one before is taken is the job's policy, since output committed after it is repeated.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.core.checkpoint import Manifest
from runtime.errors import CorruptState, JobRejected
from runtime.ports import SnapshotStore
from runtime.records import RunRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file of a checkpoint that was to be restored is missing or altered, and what is left."""

    file: str
    operator: str  #: whose state it is; "" for a manifest
    detail: str
    checkpoint: int | None  #: None where not even the name of its folder tells
    previous: int | None  #: the newest completed one before it that could be restored
    repeated: tuple[int, ...]  #: completed checkpoints after `previous`, whose output it would commit once more
    passed_over: tuple[str, ...]  #: folders of those that cannot be restored

    @property
    def offer(self) -> str:
        if self.previous is None:
            return "No completed checkpoint before it can be restored."
        text = f"Checkpoint {self.previous}, completed before it, can be restored instead"
        return f"{text}; the output of {_listed(self.repeated)} would be repeated." if self.repeated else f"{text}."

    @property
    def failure(self) -> dict[str, Any]:
        """The failure of a run that ends by it, and the detail of an attempt that does."""
        return {
            "code": "corrupt-state",
            "message": f"{self.detail}. {self.offer}",
            "operator": self.operator,
            "file": self.file,
            "checkpoint": self.checkpoint,
            "previous": self.previous,
            "repeated": list(self.repeated),
        }

    @property
    def resort(self) -> str:
        """Why the next attempt restores what it does."""
        return (
            f"{self.detail}. By policy checkpoint {self.previous} is restored instead, which repeats the output of "
            + (_listed(self.repeated) or "none")
        )


def assess(
    file: str,
    operator: str,
    detail: str,
    passed_over: Sequence[str],
    records: RunRecords,
    store: SnapshotStore,
    read: Callable[[str], Manifest],
) -> Damage:
    """Looks for what could be restored once the checkpoints in the folders `passed_over` are out of the question.

    `read` reads the manifest in a folder, and raises JobRejected if the job could not be restored from it.
    """
    useless = list(passed_over)
    previous = None
    while previous is None and (folder := records.restore_point(useless)) is not None:
        previous = _whole(folder, file, store, read)
        if previous is None:
            useless.append(folder)
    return Damage(
        file=file,
        operator=operator,
        detail=detail,
        checkpoint=number_of(passed_over[-1]) if passed_over else None,
        previous=None if previous is None else previous.checkpoint,
        repeated=() if previous is None else tuple(records.committed_since(previous.checkpoint)),
        passed_over=tuple(useless),
    )


def _whole(folder: str, damaged: str, store: SnapshotStore, read: Callable[[str], Manifest]) -> Manifest | None:
    """Its manifest, if that can be read and every file that it names is there, as far as is known.

    Checkpoints share files, so the damaged one may be its too; the others are read by whoever restores it.
    """
    try:
        manifest = read(folder)
    except (CorruptState, JobRejected):
        return None
    there = set(store.list("")) - {damaged}
    return manifest if all(segment.path in there for segment in manifest.segments()) else None


def number_of(folder: str) -> int | None:
    """The checkpoint whose folder is called so; see `folder_of`."""
    parts = folder.rsplit("/", 1)[-1].split("-")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else None


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(f"checkpoint {number}" for number in numbers)
