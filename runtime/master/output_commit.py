"""Output of sinks, as the job master checks, commits and removes it.

A checkpoint guarantees that any later restore can commit its output. The master gives this guarantee, so it must see
the files itself: output that a slot wrote behind a lost mount fails the checkpoint. Each committable is checked once.
Once its checkpoint is recorded, its output may be committed, and moved by readers, at any time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import structlog

from runtime.core.job.ids import OperatorId, Token
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.commit import CommitPermit, output_in_progress, pending_committables, permit_for_manifest
from runtime.core.snapshot.manifest import Manifest
from runtime.errors import EnvironmentFailure, JobRejected, OperatorFailure, WeirError, name_operator
from runtime.ports import ExpiringOutput, Sink, SinkCommitter

#: Before repetitions of a failed commit. Afterwards the attempt ends, and its restore commits.
COMMIT_PAUSES_S: Final = (0.2, 0.5, 1.0)

Sinks = Mapping[OperatorId, Sink]
log = structlog.get_logger()


class CheckpointOutput:
    """Output of the checkpoints of an attempt; used by the metadata thread."""

    def __init__(
        self, sinks: Sinks, token: Token, restored: Iterable[SubtaskRestore], pause: Callable[[float], bool]
    ) -> None:
        """`pause` waits for a number of seconds before a repetition; False: the attempt is ending, so give up."""
        self._sinks, self._token, self._pause = sinks, token, pause
        self._committers: dict[OperatorId, SinkCommitter] = {}
        self._uncommitted_checkpoint: int | None = None  #: recorded checkpoint whose output could not be committed
        #: Committables of the newest recorded checkpoint.
        self._recorded_committables = {
            _key(each.subtask.operator, committable)
            for each in restored
            for snapshot in each.snapshots
            for committable in snapshot.committables
        }

    def problem(self, manifest: Manifest) -> str | None:
        """The reason why the checkpoint must not be recorded, if any."""
        if self._uncommitted_checkpoint is not None:
            return f"the output of the preceding checkpoint {self._uncommitted_checkpoint} could not be committed"
        for uid, committables in pending_committables(manifest).items():
            new_output = [each for each in committables if _key(uid, each) not in self._recorded_committables]
            if new_output and (lost := self._missing(uid, new_output)):
                return _unseen("prepared output", lost)
        for uid in self._sinks:
            entries = output_in_progress(manifest, uid, self._committer(uid).list_states)
            if entries and (lost := self._missing(uid, entries)):
                return _unseen("output in progress", lost)
        return None

    def _missing(self, uid: OperatorId, entries: Sequence[Any]) -> list[str]:
        with connector_call(uid, "its committer's missing"):
            return self._committer(uid).missing(entries)

    def on_recorded(self, manifest: Manifest) -> None:
        """Commits the output of a recorded checkpoint as a whole, sink by sink. A plain savepoint commits no output.

        Raises:
            OSError, EnvironmentFailure: a target failed. Earlier sinks have committed.
            JobRejected, DataRejected: a sink refuses permanently.
            All name their operator (`runtime.errors.operator_of`).
        """
        pending = pending_committables(manifest)
        self._recorded_committables = {
            _key(uid, each) for uid, committables in pending.items() for each in committables
        }
        if manifest.kind is CheckpointKind.SAVEPOINT:
            return
        permit = permit_for_manifest(manifest, self._token)
        try:
            for uid, committables in pending.items():
                self._commit(uid, permit, committables)
        except (WeirError, OSError):
            self._uncommitted_checkpoint = manifest.checkpoint
            raise

    def _commit(self, uid: OperatorId, permit: CommitPermit, committables: Sequence[Any]) -> None:
        """Commits, repeatedly if the environment fails: a restart would cost more than a short wait."""
        for pause_s in COMMIT_PAUSES_S:
            try:
                return self._commit_once(uid, permit, committables)
            except (EnvironmentFailure, OSError) as error:
                log.warning("commit is repeated", operator=uid, checkpoint=permit.checkpoint, error=str(error))
                if not self._pause(pause_s):
                    raise
        return self._commit_once(uid, permit, committables)

    def _commit_once(self, uid: OperatorId, permit: CommitPermit, committables: Sequence[Any]) -> None:
        with connector_call(uid, "its committer's commit"):
            self._committer(uid).commit_epoch(permit, committables)

    def _committer(self, uid: OperatorId) -> SinkCommitter:
        if uid not in self._committers:
            with connector_call(uid, "the making of its committer"):
                self._committers[uid] = self._sinks[uid].committer()
        return self._committers[uid]


@contextmanager
def connector_call(uid: OperatorId, hook: str) -> Iterator[None]:
    """A call of a connector's code by the job master. Its errors name the operator.

    Raises:
        OperatorFailure: the call raised an error that is neither Weir's nor of the operating system.
    """
    try:
        yield
    except (WeirError, OSError) as error:
        name_operator(error, uid)
        raise
    except Exception as error:
        raise OperatorFailure(uid, None, hook, error) from error


def check_expiry(sinks: Sinks, settings: CoordinatorSettings) -> None:
    """Refuses a job whose checkpoints may take longer than a target keeps prepared output.

    The first row after a barrier waits for the next checkpoint, and that checkpoint for its completion. Without
    periodic checkpoints the wait has no bound, which is logged only: a bounded job commits at its end.

    Raises:
        JobRejected: names the sink and both times.
    """
    for uid, sink in sinks.items():
        expires_ms = sink.output_expires_ms if isinstance(sink, ExpiringOutput) else None
        if expires_ms is None:
            continue
        if settings.interval_ms is None:
            log.warning("prepared output may expire: there are no periodic checkpoints", operator=uid, ms=expires_ms)
        elif max(settings.interval_ms, settings.min_pause_ms) + settings.timeout_ms >= expires_ms:
            detail = (
                f"its target drops output that is not committed within {expires_ms} ms, but a checkpoint interval of "
                f"{settings.interval_ms} ms and a checkpoint time-out of {settings.timeout_ms} ms together allow for "
                "more: lower them, raise the time-out of the sink, or choose a sink whose output does not expire"
            )
            raise JobRejected("output-expires", uid, detail)


def commit_pending(sinks: Sinks, manifest: Manifest, token: Token) -> None:
    """Commits all pending output of a checkpoint that is restored, or that ends the run. Idempotent."""
    permit = permit_for_manifest(manifest, token)
    for uid, committables in pending_committables(manifest).items():
        with connector_call(uid, "its committer's commit"):
            committer = sinks[uid].committer()
            count = committer.commit(permit, committables)
            committer.commit_epoch(permit, committables)
        log.info("committed pending output", operator=uid, files=len(committables), newly=count)


def _unseen(output: str, lost: Sequence[str]) -> str:
    return f"{output} cannot be seen from the job master: {lost[0]} is missing"


def _key(uid: OperatorId, committable: Any) -> bytes:
    return msgspec.json.encode((uid, committable), order="deterministic")
