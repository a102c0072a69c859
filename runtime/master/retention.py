"""Retention: deletes files that no retained manifest names, and never a file that it cannot account for.

Checkpoints share segments, so the files of a discarded checkpoint are compared with all retained manifests. Leftovers
of older attempts (aborted checkpoints, lost acknowledgements, files whose writer was killed) are deleted at the next
start.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import structlog

from runtime.core.checkpoint.retention_plan import deletable_files, files_of, folder_of_file
from runtime.core.job.ids import OperatorId, Token
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.commit import output_in_progress, pending_committables, pending_only, retained_output
from runtime.core.snapshot.manifest import Manifest, parse_folder
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, manifest_folder
from runtime.errors import CorruptState, EnvironmentFailure, JobRejected, OperatorFailure
from runtime.io.manifests import read_manifest
from runtime.io.pins import active_pin_folders
from runtime.io.savepoints import drop_committed_output
from runtime.master.config import MasterConfig
from runtime.master.output_commit import connector_call
from runtime.ports import Clock, ReleasesInput, SinkCommitter, SnapshotStore
from runtime.run_store import RunStore

log = structlog.get_logger()


class Retention:
    """Deletes the files, output and input that no retained checkpoint of a run needs. Mutable, owned by a job master.

    `retry` retries work while the database or storage is unavailable.
    """

    def __init__(
        self,
        config: MasterConfig,
        records: RunStore,
        store: SnapshotStore,
        clock: Clock,
        retry: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self._config, self._records, self._store, self._clock, self._retry = config, records, store, clock, retry
        self._discarded_folders: list[str] = []  #: folders of discarded checkpoints whose files still exist
        self._pending_savepoints: list[Manifest] = []  #: savepoints whose output may not be committed yet
        self.unreadable_folders: list[str] = []  #: folders of retained checkpoints with an unreadable manifest
        #: by sink, output in progress of older attempts that retained manifests name
        self._older_output: dict[OperatorId, list[Any]] = {}
        self._oldest = Token(0)  #: of the attempts in which running slots were deployed

    def on_completed(self, manifest: Manifest) -> None:
        """Called on the metadata thread after each completed checkpoint."""
        if manifest.kind is CheckpointKind.SAVEPOINT and pending_committables(manifest):
            self._pending_savepoints.append(manifest)
        else:
            self._drop_committed_output(manifest)
        self._discarded_folders += self._records.discard_older(self._config.retention)
        if self._discarded_folders:
            retained = self._read_retained()
            self._discarded_folders = discard_checkpoints(
                self._store,
                self._discarded_folders,
                retained,
                self.unreadable_folders,
                self._pinned_folders,
                self._oldest,
            )
            if not self.unreadable_folders:
                self._release_input(retained)
                self._release_output(retained, self._oldest)

    def remove_leftovers(self, token: Token, restored: Manifest | None) -> None:
        """Removes the leftovers of attempts older than `token`. `restored`: the checkpoint that is being restored."""
        self._oldest = token
        retained = self._read_retained()
        if restored is not None:
            self._pending_savepoints = [
                each for each in retained if each.kind is CheckpointKind.SAVEPOINT and pending_committables(each)
            ]
            self._drop_committed_output(restored)
        self._pending_savepoints = []
        if not self.unreadable_folders:  # prepared output of an unreadable checkpoint is not known
            manifests = retained if restored is None else [*retained, restored]  # `restored` may have no record
            self._clean_output(manifests, token)
            self._release_input(manifests)
        self._sweep_storage(retained, token)

    def drop_committed_output(self, savepoint: Manifest, later: Manifest | None = None) -> None:
        """Removes committed output from the stored manifest, whose paths lie in its folder, unless it is damaged."""
        folder = manifest_folder(savepoint)
        try:
            drop_committed_output(self._store, read_manifest(self._store, folder), later)
        except (CorruptState, JobRejected) as error:
            log.warning("a savepoint cannot record what is committed", folder=folder, error=str(error))

    def _drop_committed_output(self, later: Manifest) -> None:
        """Removes output from savepoints that `later` shows to be committed. Reads a manifest only if it changes."""
        left = [(savepoint, pending_only(savepoint, later)) for savepoint in self._pending_savepoints]
        for before, after in left:
            if after != before:
                self.drop_committed_output(before, later)
        self._pending_savepoints = [after for _, after in left if pending_committables(after)]

    def _read_retained(self) -> list[Manifest]:
        """Restorable manifests of the job. Sets `unreadable_folders`.

        Files that an unreadable manifest (damaged, or of newer software) may need stay until it is discarded.
        """
        manifests, unreadable = [], []
        for folder in self._retry(self._records.retained_folders):
            try:
                manifests.append(read_manifest(self._store, folder))
            except (CorruptState, JobRejected) as error:
                log.error(
                    "a retained checkpoint is unreadable: what it may need stays", folder=folder, error=str(error)
                )
                unreadable.append(folder)
        self.unreadable_folders = unreadable
        return manifests

    def _clean_output(self, retained: list[Manifest], token: Token) -> None:
        self._older_output = {}
        for uid, sink in self._config.job.sinks.items():
            with connector_call(uid, "the making of its committer"):
                committer = sink.committer()
            if output := _output_in_progress(retained, uid, committer):
                self._older_output[uid] = output
            self._clean_sink(uid, committer, retained, token)

    def _clean_sink(self, uid: OperatorId, committer: SinkCommitter, retained: list[Manifest], token: Token) -> None:
        keep = retained_output(retained, uid, committer.list_states)
        with connector_call(uid, "its committer's clean"):
            removed = committer.clean(self._config.job_id, uid, token, keep)
        if removed:
            log.info("removed leftovers of older attempts", operator=uid, files=removed)

    def _release_output(self, retained: list[Manifest], token: Token) -> None:
        """Removes output in progress of older attempts once no retained manifest names it. The writers have copies."""
        for uid, older in list(self._older_output.items()):
            committer = self._config.job.sinks[uid].committer()
            entries = _output_in_progress(retained, uid, committer)
            self._older_output[uid] = [entry for entry in older if entry in entries]
            if len(self._older_output[uid]) == len(older):
                continue
            try:
                self._clean_sink(uid, committer, retained, token)
            except (OSError, EnvironmentFailure, OperatorFailure) as error:
                log.warning("output of older attempts is not deleted yet", operator=uid, error=str(error))
                self._older_output[uid] = older
            if not self._older_output[uid]:
                del self._older_output[uid]

    def _release_input(self, retained: list[Manifest]) -> None:
        """Deletes input that no retained checkpoint needs. A failure is retried at the next checkpoint."""
        for uid, source in self._config.job.sources.items():
            if isinstance(source, ReleasesInput):
                try:
                    with connector_call(uid, "its release"):
                        released = source.release(list_states_of(retained, uid))
                except (OSError, EnvironmentFailure, OperatorFailure) as error:
                    log.warning("processed input is not deleted yet", operator=uid, error=str(error))
                else:
                    log.debug("released input", operator=uid, pieces=released)

    def _sweep_storage(self, retained: list[Manifest], token: Token) -> None:
        """Deletes leftovers. Checkpoints that are being read stay until a later checkpoint completes."""
        folders = {manifest_folder(manifest) for manifest in retained}
        read = readable_manifests(self._store, [folder for folder in self._pinned_folders() if folder not in folders])
        self._discarded_folders = [manifest_folder(manifest) for manifest in read if not manifest.kind.is_savepoint]
        sweep_orphans(self._store, token, [*retained, *read], self.unreadable_folders)

    def _pinned_folders(self) -> frozenset[str]:
        """Folders of checkpoints that other processes are reading."""
        return active_pin_folders(self._store, self._clock.now_ms())


def _output_in_progress(retained: Iterable[Manifest], uid: OperatorId, committer: SinkCommitter) -> list[Any]:
    """The entries of all manifests in the list states for output in progress."""
    return [entry for manifest in retained for entry in output_in_progress(manifest, uid, committer.list_states)]


def list_states_of(retained: Iterable[Manifest], uid: OperatorId) -> list[dict[str, list[Any]]]:
    """For each manifest with the operator: the operator's list states by name, with the entries of all subtasks."""
    states = []
    for manifest in retained:
        if (operator := manifest.operators.get(uid)) is not None:
            lists: dict[str, list[Any]] = {}
            for _, subtask in sorted(operator.subtasks.items()):
                for name, entries in subtask.lists.items():
                    lists.setdefault(name, []).extend(entries)
            states.append(lists)
    return states


def discard_checkpoints(
    store: SnapshotStore,
    discarded: Iterable[str],
    retained: Iterable[Manifest],
    unreadable: Collection[str] = (),
    pinned: Callable[[], frozenset[str]] = frozenset,
    oldest: Token | None = None,
) -> list[str]:
    """Deletes files of the checkpoints in folders `discarded` that no manifest in `retained` needs.

    `unreadable` are folders of retained checkpoints with an unreadable manifest; files that they may need stay.
    `pinned` returns the folders that are being read. They stay with all their files, and are returned. Manifests are
    deleted first, then pins are checked again: a reader pins before it opens the manifest (`io.pins`).
    `oldest`: token of the oldest attempt in which a running slot was deployed; None: no slot is kept.
    """
    folders = list(discarded)
    pinned_folders = pinned().intersection(folders)
    survivors = [*retained, *readable_manifests(store, pinned_folders)]
    newest = max((manifest.token for manifest in survivors), default=0)
    running = newest if oldest is None else min(newest, oldest)
    doomed = {folder: _attributable_files(store, folder, running) for folder in folders if folder not in pinned_folders}
    going = deletable_files((path for files in doomed.values() for path in files), survivors, unreadable)
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
    return sorted(pinned_folders | late)


def readable_manifests(store: SnapshotStore, folders: Iterable[str]) -> list[Manifest]:
    """The readable manifests in `folders`."""
    manifests = []
    for folder in folders:
        try:
            manifests.append(read_manifest(store, folder))
        except (CorruptState, JobRejected):
            continue
    return manifests


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
    files = store.list("")
    manifest_folders = {path.removesuffix(f"/{MANIFEST_FILE}") for path in files if path.endswith(f"/{MANIFEST_FILE}")}
    left = [path for path in files if _is_orphan(folder_of_file(path), token, manifest_folders)]
    orphans = sorted(deletable_files(left, retained, unreadable))
    orphans += [path for path in store.leftover_files() if _is_older(folder_of_file(path), token)]
    store.delete(orphans)
    return len(orphans)


def _is_orphan(folder: str, token: Token, manifest_folders: set[str]) -> bool:
    return _is_older(folder, token) and (folder.startswith("chk-") or folder not in manifest_folders)


def _is_older(folder: str, token: int) -> bool:
    """Whether an older attempt made the folder `chk-<id>-<token>` or `savepoint-<id>-<token>`; else False."""
    numbers = parse_folder(folder)
    return numbers is not None and numbers[1] < token
