"""The output of a recorded checkpoint as a whole, committed by the job master (`SinkCommitter.commit_epoch`)."""

from collections.abc import Mapping

from runtime.core.checkpoint import Manifest
from runtime.core.commit import owed, permit_for_recorded
from runtime.core.ids import OperatorId, Token
from runtime.errors import JobRejected
from runtime.ports import Sink, SinkCommitter


class EpochCommits:
    """Of one attempt. Used by the thread that records its checkpoints."""

    def __init__(self, sinks: Mapping[OperatorId, Sink], token: Token) -> None:
        self._sinks, self._token = sinks, token
        self._committers: dict[OperatorId, SinkCommitter] = {}

    def on_recorded(self, manifest: Manifest) -> None:
        """Commits what the checkpoint holds, sink by sink. May be repeated.

        Raises:
            EnvironmentFailure: a target failed. Sinks before it have committed.
            JobRejected: a sink refuses, for good; it is named.
        """
        permit = permit_for_recorded(manifest, self._token)
        for uid, committables in owed(manifest).items():
            if uid not in self._committers:
                self._committers[uid] = self._sinks[uid].committer()
            try:
                self._committers[uid].commit_epoch(permit, committables)
            except JobRejected as error:
                raise JobRejected(error.code, f"{uid}.{error.field}", error.detail) from error
