"""Retention as the master does it, for tests of what state does under it."""

from collections.abc import Iterable
from typing import TypeVar

from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.io.memory.snapshot_store import MemorySnapshotStore

KEPT = 3

Model = TypeVar("Model")
Taken = tuple[Model, list[SubtaskSnapshot]]  #: what was there, and the snapshots of it


def retained(store: MemorySnapshotStore, snapshots: list[Taken[Model]]) -> list[Taken[Model]]:
    """The newest, after the files of the others are gone that no newer one needs."""
    survivors = snapshots[-KEPT:]
    store.delete(_files(snapshots[:-KEPT]) - _files(survivors))
    return survivors


def _files(snapshots: Iterable[Taken[Model]]) -> set[str]:
    return {segment.path for _, parts in snapshots for snapshot in parts for segment in snapshot.segments()}
