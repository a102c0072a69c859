"""Output of a checkpoint, committed by the job master as a whole (`SinkCommitter.commit_epoch`)."""

from collections.abc import Mapping

from runtime.core.job.ids import OperatorId, Token
from runtime.core.snapshot.commit import pending_committables, permit_for_manifest
from runtime.core.snapshot.manifest import Manifest
from runtime.errors import JobRejected
from runtime.ports import Sink, SinkCommitter


class EpochCommits:
    """Commits of a single attempt; used by the metadata thread."""

    def __init__(self, sinks: Mapping[OperatorId, Sink], token: Token) -> None:
        self._sinks, self._token = sinks, token
        self._committers: dict[OperatorId, SinkCommitter] = {}

    def on_recorded(self, manifest: Manifest) -> None:
        """Commits the output of a recorded checkpoint, sink by sink. Idempotent.

        Raises:
            EnvironmentFailure: a target failed. Earlier sinks have committed.
            JobRejected: a sink refuses permanently; the error names it.
        """
        permit = permit_for_manifest(manifest, self._token)
        for uid, committables in pending_committables(manifest).items():
            if uid not in self._committers:
                self._committers[uid] = self._sinks[uid].committer()
            try:
                self._committers[uid].commit_epoch(permit, committables)
            except JobRejected as error:
                raise JobRejected(error.code, f"{uid}.{error.field}", error.detail) from error
