"""Restore before an attempt: the checkpoint to restore, its pending output, and the state of each subtask."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog

from runtime.core.attempt.failover import GiveUp, Restart
from runtime.core.attempt.result import AttemptFailed
from runtime.core.job.ids import SubtaskId, Token
from runtime.core.restore.mapping import check_restorable
from runtime.core.restore.state_assignment import SubtaskRestore, assign_state
from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.manifest_codec import manifest_folder
from runtime.errors import CorruptState, JobRejected
from runtime.io.manifests import read_manifest
from runtime.io.savepoints import import_files, manifest_at, publish_import
from runtime.master.config import MasterConfig
from runtime.master.output_commit import commit_pending
from runtime.master.restore_fallback import RestoreFallback, checkpoint_number
from runtime.master.retention import Retention
from runtime.ports import Clock, SnapshotStore
from runtime.run_store import RunStore

log = structlog.get_logger()


class Restorer:
    """Mutable, owned by a job master. `retry` retries work while the database or storage is unavailable."""

    def __init__(
        self,
        config: MasterConfig,
        records: RunStore,
        store: SnapshotStore,
        retention: Retention,
        clock: Clock,
        retry: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self._config, self._records, self._store = config, records, store
        self._retention, self._clock, self._retry = retention, clock, retry
        self._folder: str | None = None  #: folder of the checkpoint to restore
        self._unusable_folders: tuple[str, ...] = ()  #: folders of unreadable checkpoints

    def final_savepoint(self) -> Manifest | None:
        """The recorded savepoint of a stop or drain. No attempt follows it, not even from an earlier checkpoint."""
        folder = self._retry(self._records.final_savepoint)
        if folder is None:
            return None
        self._folder = folder
        return read_manifest(self._store, folder)

    def restore_point(self) -> Manifest | None:
        """The checkpoint to restore; None: the job begins from nothing."""
        folder = self._folder = self._retry(partial(self._records.restore_point, self._unusable_folders))
        return None if folder is None else self._read_restorable(folder)

    def restore(self, manifest: Manifest | None, token: Token, oldest: Token) -> Mapping[SubtaskId, SubtaskRestore]:
        """Commits pending output of the restored checkpoint, removes leftovers, and assigns state to subtasks.

        Args:
            manifest: the last `restore_point`.
            oldest: token of the oldest attempt that a running slot was deployed in. What this slot and its later
                siblings have written is no leftover.
        """
        graph, folder = self._config.job.graph, self._folder
        if manifest is not None and folder is not None:
            import_files(self._store, folder, manifest)
            commit_pending(self._config.job.sinks, manifest, token)  # may reject the manifest's committables
            publish_import(self._store, folder, manifest)
        self._retention.remove_leftovers(oldest, manifest)
        self._retry(partial(self._records.record_restore, None if manifest is None else manifest_folder(manifest)))
        if manifest is None:
            return {subtask: SubtaskRestore(subtask=subtask) for subtask in graph.subtasks}
        log.info("restoring", checkpoint=manifest.checkpoint, kind=str(manifest.kind), token=token)
        return assign_state(manifest, graph)

    def fall_back(self, failed: AttemptFailed) -> Restart | GiveUp:
        """Decides whether the next attempt restores the previous checkpoint: only if the job may repeat output.

        The restart strategy is not consulted: each such attempt has fewer checkpoints to choose from.
        """
        damage = self._retry(partial(self._find_fallback, failed))
        log.error("a checkpoint cannot be restored", **damage.failure)
        if self._config.on_corrupt_checkpoint == "fail" or failed.is_final or not damage.is_usable:
            return GiveUp(damage.failure)
        self._unusable_folders = damage.unusable_folders
        return Restart(damage.fallback_reason, damage.failure, delay_ms=0)

    def _find_fallback(self, failed: AttemptFailed) -> RestoreFallback:
        unusable = list(self._unusable_folders) if self._folder is None else [*self._unusable_folders, self._folder]
        damaged = checkpoint_number(unusable[-1]) if unusable else None
        sizes = self._store.sizes("")
        sizes.pop(failed.damaged_file, None)  # checkpoints share files: an earlier one may need it too
        previous = None
        while previous is None and (folder := self._records.restore_point(unusable)) is not None:
            previous = self._complete_manifest(folder, sizes)
            if previous is None:
                unusable.append(folder)
        repeated = () if previous is None else tuple(self._records.checkpoints_since(previous.checkpoint))
        return RestoreFallback(
            file=failed.damaged_file,
            operator=failed.operator,
            detail=failed.detail,
            checkpoint=damaged,
            previous=None if previous is None else previous.checkpoint,
            age_ms=0 if previous is None else self._clock.now_ms() - previous.triggered_at,
            limit_ms=self._config.fallback_limit_ms,
            repeated_checkpoints=repeated,
            unusable_folders=tuple(unusable),
        )

    def _complete_manifest(self, folder: str, sizes: Mapping[str, int]) -> Manifest | None:
        """The manifest, if it is readable and all its files exist with their sizes; else None.

        The restore verifies the contents.
        """
        try:
            manifest = self._read_restorable(folder)
        except (CorruptState, JobRejected):
            return None
        return manifest if all(sizes.get(segment.path) == segment.nbytes for segment in manifest.files()) else None

    def _read_restorable(self, folder: str) -> Manifest:
        """The manifest in `folder`. Raises JobRejected if the job cannot be restored from it."""
        manifest = manifest_at(self._store, folder)
        config = self._config
        check_restorable(manifest, config.job.graph, config.job_id, allow_unmapped=config.allow_unmapped)
        return manifest
