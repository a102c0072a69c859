"""Retention: deletes files that no retained manifest names, and never a file that it cannot account for.

Checkpoints share segments, so the files of a discarded checkpoint are compared with all retained manifests. Leftovers
of older attempts (aborted checkpoints, lost acknowledgements, files whose writer was killed) are deleted at the next
start.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from runtime.core.job.ids import OperatorId, Token
from runtime.core.snapshot.manifest import Manifest, parse_folder
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, manifest_folder
from runtime.errors import CorruptState, JobRejected
from runtime.io.manifests import read_manifest
from runtime.ports import SnapshotStore


def files_of(manifest: Manifest) -> set[str]:
    """Every file that a checkpoint needs, including its manifest."""
    return {segment.path for segment in manifest.segments()} | {f"{manifest_folder(manifest)}/{MANIFEST_FILE}"}


def list_states_of(retained: Iterable[Manifest], uid: OperatorId) -> list[dict[str, list[Any]]]:
    """For each manifest that has the operator: its list states by name, with the entries of all subtasks."""
    found = []
    for manifest in retained:
        if (operator := manifest.operators.get(uid)) is not None:
            lists: dict[str, list[Any]] = {}
            for _, subtask in sorted(operator.subtasks.items()):
                for name, entries in subtask.lists.items():
                    lists.setdefault(name, []).extend(entries)
            found.append(lists)
    return found


def discard_checkpoints(
    store: SnapshotStore,
    discarded: Iterable[str],
    retained: Iterable[Manifest],
    unreadable: Collection[str] = (),
    pinned: Callable[[], frozenset[str]] = frozenset,
) -> list[str]:
    """Deletes files of the checkpoints in folders `discarded` that no manifest in `retained` needs.

    `unreadable` are folders of retained checkpoints with an unreadable manifest; files that they may need stay.
    `pinned` returns the folders that are being read. They stay with all their files, and are returned. Manifests are
    deleted first, then pins are checked again: a reader pins before it opens the manifest (`io.pins`).
    """
    folders = list(discarded)
    held = pinned().intersection(folders)
    kept = [*retained, *readable_manifests(store, held)]
    newest = max((manifest.token for manifest in kept), default=0)
    needed = {path for manifest in kept for path in files_of(manifest)}
    doomed = {folder: _attributable_files(store, folder, newest) for folder in folders if folder not in held}
    going = {path for files in doomed.values() for path in files} - needed
    going = {path for path in going if not _is_possibly_needed(path, unreadable)}
    manifests = {
        path: data for path in going if path.endswith(f"/{MANIFEST_FILE}") for data in _read_if_present(store, path)
    }
    store.delete(sorted(manifests))
    late = pinned().intersection(doomed)
    for folder in late:
        going -= doomed[folder]
        for path in manifests.keys() & doomed[folder]:
            store.put(path, [manifests[path]])
    store.delete(sorted(going))
    return sorted(held | late)


def readable_manifests(store: SnapshotStore, folders: Iterable[str]) -> list[Manifest]:
    """Manifests in these folders, without unreadable manifests."""
    found = []
    for folder in folders:
        try:
            found.append(read_manifest(store, folder))
        except (CorruptState, JobRejected):
            continue
    return found


def _read_if_present(store: SnapshotStore, path: str) -> list[bytes]:
    """Content of the file; empty if it does not exist."""
    try:
        return [store.get(path)]
    except CorruptState:
        return []


def _attributable_files(store: SnapshotStore, folder: str, token: int) -> set[str]:
    try:
        return files_of(read_manifest(store, folder))
    except (CorruptState, JobRejected):  # damaged, or of newer software
        if token and not _is_older(folder, token):  # later checkpoints of a running attempt may name its files
            return {f"{folder}/{MANIFEST_FILE}"}
        return set(store.list(f"{folder}/"))


def sweep_orphans(
    store: SnapshotStore, token: Token, retained: Iterable[Manifest], unreadable: Collection[str] = ()
) -> int:
    """Deletes files of attempts older than `token` that no manifest in `retained` needs. Returns their number.

    A savepoint belongs to its users: its folder is swept only if it never got a manifest.
    """
    needed = {path for manifest in retained for path in files_of(manifest)}
    found = store.list("")
    whole = {path.removesuffix(f"/{MANIFEST_FILE}") for path in found if path.endswith(f"/{MANIFEST_FILE}")}
    orphans = [path for path in found if path not in needed and _is_orphan(_folder(path), token, whole)]
    orphans = [path for path in orphans if not _is_possibly_needed(path, unreadable)]
    orphans += [path for path in store.leftover_files() if _is_older(_folder(path), token)]
    store.delete(orphans)
    return len(orphans)


def _is_possibly_needed(path: str, unreadable: Collection[str]) -> bool:
    """Whether a checkpoint with an unreadable manifest may name `path`.

    A savepoint names files in its own folder only. A checkpoint names no file in the folder of a newer checkpoint
    (see `SegmentLog`).
    """
    folder = _folder(path)
    if folder in unreadable:
        return True
    own = parse_folder(folder)
    taken = [parse_folder(other) for other in unreadable if not other.startswith("savepoint-")]
    return any(own is None or other is None or own[0] <= other[0] for other in taken)


def _folder(path: str) -> str:
    return path.split("/", 1)[0]


def _is_orphan(folder: str, token: Token, whole: set[str]) -> bool:
    return _is_older(folder, token) and (folder.startswith("chk-") or folder not in whole)


def _is_older(folder: str, token: int) -> bool:
    """Whether an older attempt made the folder `chk-<id>-<token>` or `savepoint-<id>-<token>`. No other name counts."""
    numbers = parse_folder(folder)
    return numbers is not None and numbers[1] < token
