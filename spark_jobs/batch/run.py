"""A batch run: plan, execute, then a single commit.

    with spark_session(SparkSettings.for_batch("counts")) as spark:
        run_batch(flow, parallelism=2, spark=spark, storage="/tmp/counts")

The end of a run is recorded like a drain: a single manifest names the committables of all sinks. It is durable and
recorded before the first commit. A run that fails before its end is recorded leaves no visible output. If a run crashes
later, the next attempt commits from the recorded manifest and executes no stage again.

The rows of an `EpochStage` are a single epoch. The driver calls its function behind the commit, with the same session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from runtime.clock import SystemClock
from runtime.connectors.sinks.epoch_stage import EpochStage
from runtime.core.job.ids import OperatorId, Token
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.commit import pending_committables, permit_for_manifest, retained_output
from runtime.core.snapshot.manifest import FinishedState, Manifest, OperatorSnapshot, SubtaskSnapshot
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.errors import CorruptState, EnvironmentFailure, JobRejected, WeirError
from runtime.io.manifests import read_manifest
from runtime.io.memory.run_store import MemoryRunStore
from runtime.io.savepoints import drop_committed_output
from runtime.io.store import open_store, storage_uri
from runtime.launch.local import newest_ids
from runtime.master.finalize import NotRecorded, Recorded, finalize_checkpoint
from runtime.ports import SnapshotStore
from runtime.run_store import RunStore
from spark_jobs.batch.columns import StepColumns
from spark_jobs.batch.execute import SinkResult, execute
from spark_jobs.batch.failures import call_hook
from spark_jobs.batch.plan import BatchStage, stages_of
from spark_jobs.batch.progress import BatchProgress
from spark_jobs.batch.refusals import check_batch
from spark_jobs.batch.subtask import JobFacts
from spark_jobs.sinks.delivery import Delivery
from spark_jobs.sources.frames import CheckedFrame, open_frame
from spark_jobs.sources.table import SparkTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Session = Callable[[], AbstractContextManager["SparkSession"]]

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """The result of a committed run. `rows` by sink; empty if an earlier attempt executed the job."""

    rows: dict[OperatorId, int]


@dataclass(frozen=True)
class BatchPlan:
    """The stages of a job. `frames`: by uid, DataFrames of `from_spark` sources, in the session that runs the plan."""

    stages: tuple[BatchStage, ...]
    frames: Mapping[OperatorId, CheckedFrame] = field(default_factory=dict)


def plan_batch(job: CompiledJob, spark: SparkSession | None = None) -> BatchPlan:
    """Plans `job`. No Spark job is started; at most the first rows of the job's sources are read.

    Args:
        spark: needed if the job has a source `from_spark`.

    Raises:
        JobRejected: the job cannot run in BATCH; operator and reason are named.
    """
    check_batch(job)
    frames: dict[OperatorId, CheckedFrame] = {}
    for uid, source in job.sources.items():
        if isinstance(source, SparkTable):
            assert spark is not None, "the DataFrame of a source is of this Spark"
            frames[uid] = open_frame(uid, source, spark)
    shapes = {uid: frame.shape for uid, frame in frames.items()}
    return BatchPlan(stages_of(job, StepColumns(job, frames), shapes), frames)


@contextmanager
def plan_with_session(job: CompiledJob, session: Session) -> Iterator[tuple[BatchPlan, SparkSession]]:
    """Plans `job` and starts Spark. A job is refused before the start, unless the reason depends on a DataFrame."""
    if any(isinstance(source, SparkTable) for source in job.sources.values()):
        check_batch(job)
        with session() as spark:
            yield plan_batch(job, spark), spark
    else:
        plan = plan_batch(job)
        with session() as spark:
            yield plan, spark


def run_batch(flow: Dataflow, *, parallelism: int, spark: SparkSession, storage: str) -> BatchResult:
    """Runs a bounded job to its end as a Spark plan.

    Args:
        parallelism: subtasks of each operator, as in STREAMING.
        spark: a session of `SparkSettings.for_batch`, which retries failed tasks.
        storage: folder or URI for the manifest of the run's end.

    Raises:
        JobRejected: the job cannot run in BATCH; no Spark job was started.
        WeirError: a task failed in all attempts; no output is visible.
    """
    job = flow.compile(parallelism)
    return run_plan(job, plan_batch(job, spark), spark=spark, storage=storage)


def run_plan(job: CompiledJob, plan: BatchPlan, *, spark: SparkSession, storage: str) -> BatchResult:
    """As `run_batch`, for a job that is planned already."""
    store = open_store(storage_uri("storage", storage))
    records = MemoryRunStore(token=Token(SystemClock().now_ms()))
    records.reserve_ids_above(*newest_ids(store, None))
    return BatchRun(job=job, job_id=job.name, token=records.token, records=records, store=store).run(plan, spark)


@dataclass(frozen=True, kw_only=True)
class BatchRun:
    """An attempt of a batch run, made by the holder of `token`."""

    job: CompiledJob
    job_id: str
    token: Token
    records: RunStore
    store: SnapshotStore
    retry: Callable[[Callable[[], Any]], Any] = lambda function: function()  #: retries if `records` is unavailable
    may_end: Callable[[], bool] = lambda: True  #: called immediately before the end is recorded
    stopping: threading.Event = field(default_factory=threading.Event)  #: set: wait no longer for the target of a sink

    def run(self, plan: BatchPlan, spark: SparkSession, progress: BatchProgress | None = None) -> BatchResult:
        """Executes the plan and commits its output. Only commits if an earlier attempt has recorded the end.

        Args:
            progress: progress of the stages of `plan`, updated while they run.

        Raises:
            WeirError: a task failed in all attempts, or the attempt was superseded; no output is visible. Or an error
                of the commit, which another attempt repeats; the sink is named.
        """
        recorded = self.retry(self.records.final_savepoint)
        deliveries = {
            uid: Delivery(sink, spark, lambda _: None)
            for uid, sink in self.job.sinks.items()
            if isinstance(sink, EpochStage)
        }
        try:
            if recorded is not None:
                self._commit(read_manifest(self.store, recorded), deliveries)
                return BatchResult(rows={})
            for uid, delivery in deliveries.items():
                call_hook(uid, None, "prepare", delivery.prepare, self.stopping)
            prepared = execute(spark, plan.stages, self.job_facts, self.group, frames=plan.frames, progress=progress)
            self._check_visible(prepared)
            self._commit(self._record_end(prepared), deliveries)
        finally:
            self._delete_uncommitted_files()
        rows = {uid: sum(each.rows for each in prepared if each.sink == uid) for uid in self.job.sinks}
        log.info("committed a batch run", rows=rows)
        return BatchResult(rows=rows)

    @property
    def job_facts(self) -> JobFacts:
        return JobFacts(name=self.job_id, max_parallelism=self.job.graph.max_parallelism, token=self.token)

    @property
    def group(self) -> str:
        """The Spark job group."""
        return f"{self.job_id}-{self.token}"

    def _commit(self, manifest: Manifest, deliveries: Mapping[OperatorId, Delivery]) -> None:
        """Commits the output of a recorded manifest, and delivers epochs. Idempotent."""
        permit = permit_for_manifest(manifest, self.token)
        for uid, committables in pending_committables(manifest).items():
            committer = self.job.sinks[uid].committer()
            call_hook(uid, None, "commit", committer.commit, permit, committables)
            call_hook(uid, None, "commit", committer.commit_epoch, permit, committables)
        for uid, delivery in deliveries.items():
            if not call_hook(uid, None, "delivery", delivery.run_to_end, self.stopping):
                raise WeirError(f"operator {uid!r}: the run was released before its epoch was delivered")
        drop_committed_output(self.store, manifest, None)

    def _check_visible(self, prepared: Sequence[SinkResult]) -> None:
        """Raises EnvironmentFailure: a written file is not visible here, so a manifest must not promise its commit."""
        for each in prepared:
            missing = self.job.sinks[each.sink].committer().missing(each.committables)
            if missing:
                raise EnvironmentFailure(f"sink {each.sink!r}: a task wrote {missing[0]}, which is not visible here")

    def _record_end(self, prepared: Sequence[SinkResult]) -> Manifest:
        if not self.may_end():
            raise WeirError("the run was cancelled or released before its end was recorded")
        checkpoint = self.retry(self.records.next_checkpoint_id)
        now = SystemClock().now_ms()
        if checkpoint is None:
            raise Superseded
        manifest = Manifest(
            job=self.job_id,
            checkpoint=checkpoint,
            kind=CheckpointKind.DRAIN,
            token=self.token,
            triggered_at=now,
            max_parallelism=self.job.graph.max_parallelism,
            operators={o.uid: self._snapshot(o.uid, o.parallelism, prepared) for o in self.job.graph.operators},
        )
        result = self.retry(partial(finalize_checkpoint, self.store, self.records, manifest, (), SystemClock().now_ms))
        if isinstance(result, NotRecorded):
            raise EnvironmentFailure(result.detail)
        if not isinstance(result, Recorded):
            raise Superseded
        return manifest

    @staticmethod
    def _snapshot(uid: OperatorId, parallelism: int, prepared: Sequence[SinkResult]) -> OperatorSnapshot:
        written = [each.committables for each in prepared if each.sink == uid]
        subtasks = {
            number: SubtaskSnapshot(finished=True, committables=committables)
            for number, committables in enumerate(written)
        }
        return OperatorSnapshot(parallelism=parallelism, finished=FinishedState.FINISHED, subtasks=subtasks)

    def _delete_uncommitted_files(self) -> None:
        """Deletes output files of uncommitted task attempts and of older attempts of the run."""
        try:
            retained = [read_manifest(self.store, folder) for folder in self.records.retained_folders()]
        except (CorruptState, JobRejected) as error:
            log.error("a retained checkpoint is unreadable: uncommitted output files are not deleted", error=str(error))
            return
        for uid, sink in self.job.sinks.items():
            committer = sink.committer()
            keep = retained_output(retained, uid, committer.list_states)
            committer.clean(self.job_id, uid, Token(self.token + 1), keep)


class Superseded(WeirError):
    """A newer attempt has taken over; this attempt must not commit."""
