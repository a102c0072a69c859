"""A batch run: plan, execute, then one commit.

    with spark_session(SparkSettings.for_batch("counts")) as spark:
        run_batch(flow, parallelism=2, spark=spark, storage="/tmp/counts")

The end of a run is recorded like a drain: one manifest that names what every sink has prepared, made durable and
recorded before anything is committed. Until then a run that fails leaves nothing visible. Whoever finds the record
after a crash commits what it names, and runs nothing again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from runtime.blueprint import CompiledJob
from runtime.core.checkpoint import FinishedState, Manifest, OperatorSnapshot, SubtaskSnapshot
from runtime.core.commit import owed, permit_for_recorded, retained_committables
from runtime.core.ids import OperatorId, Token
from runtime.core.messages import CheckpointKind
from runtime.dataflow import Dataflow
from runtime.errors import CorruptState, EnvironmentFailure, JobRejected, WeirError
from runtime.hosts.completion import complete
from runtime.hosts.local import newest_in
from runtime.io.clock import SystemClock
from runtime.io.filesystem import FileStore
from runtime.io.manifests import read_manifest
from runtime.io.memory_records import MemoryRecords
from runtime.io.savepoints import note_committed
from runtime.ports import SnapshotStore
from runtime.records import RunRecords
from spark_jobs.batch.columns import Columns
from spark_jobs.batch.execute import Prepared, execute
from spark_jobs.batch.plan import Stage, stages_of
from spark_jobs.batch.progress import Progress
from spark_jobs.batch.refusals import check_batch
from spark_jobs.batch.subtask import Job
from spark_jobs.sources.frames import OpenedFrame, opened
from spark_jobs.sources.table import SparkTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Session = Callable[[], AbstractContextManager["SparkSession"]]

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """What was committed. `rows` by sink; none are known if an earlier attempt has executed the job."""

    rows: dict[OperatorId, int]


@dataclass(frozen=True)
class BatchPlan:
    """The stages of a job. `frames`: sources that are DataFrames of the Spark in which the plan is to run."""

    stages: tuple[Stage, ...]
    frames: Mapping[OperatorId, OpenedFrame] = field(default_factory=dict)


def plan_batch(job: CompiledJob, spark: SparkSession | None = None) -> BatchPlan:
    """The plan of `job`. Nothing is started: at most the first rows of its sources are read.

    Args:
        spark: needed if the job has a source `from_spark`.

    Raises:
        JobRejected: it cannot run in BATCH; operator and reason are named.
    """
    check_batch(job)
    frames: dict[OperatorId, OpenedFrame] = {}
    for uid, source in job.sources.items():
        if isinstance(source, SparkTable):
            assert spark is not None, "the DataFrame of a source is of this Spark"
            frames[uid] = opened(uid, source, spark)
    shapes = {uid: found.shape for uid, found in frames.items()}
    return BatchPlan(stages_of(job, Columns(job, frames), shapes), frames)


@contextmanager
def planned(job: CompiledJob, session: Session) -> Iterator[tuple[BatchPlan, SparkSession]]:
    """Plans `job` and starts Spark. What cannot run is refused before that, unless it is known from DataFrames only."""
    if any(isinstance(source, SparkTable) for source in job.sources.values()):
        check_batch(job)
        with session() as spark:
            yield plan_batch(job, spark), spark
    else:
        plan = plan_batch(job)
        with session() as spark:
            yield plan, spark


def run_batch(
    flow: Dataflow, *, parallelism: int, spark: SparkSession, storage: str, records: MemoryRecords | None = None
) -> BatchResult:
    """Runs a bounded job to its end as a Spark plan.

    Args:
        parallelism: subtasks of each operator, as in STREAMING.
        spark: a context of `SparkSettings.for_batch`, so that a task that fails is tried again.
        storage: folder for the record of the run's end.

    Raises:
        JobRejected: the job cannot run in BATCH; nothing was started.
        WeirError: a task failed for good; nothing is visible.
    """
    job = flow.compile(parallelism)
    return run_planned(job, plan_batch(job, spark), spark=spark, storage=storage, records=records)


def run_planned(
    job: CompiledJob,
    plan: BatchPlan,
    *,
    spark: SparkSession,
    storage: str,
    records: MemoryRecords | None = None,
) -> BatchResult:
    """As `run_batch`, for a job that was planned before."""
    store = FileStore(str(Path(storage).absolute()))
    records = records or MemoryRecords(token=Token(SystemClock().now_ms()))
    records.reserve_above(*newest_in(store, None))
    return BatchRun(job=job, job_id=job.name, token=records.token, records=records, store=store).run(plan, spark)


@dataclass(frozen=True, kw_only=True)
class BatchRun:
    """One attempt at a batch run, by the holder of `token`."""

    job: CompiledJob
    job_id: str
    token: Token
    records: RunRecords
    store: SnapshotStore
    patiently: Callable[[Callable[[], Any]], Any] = lambda function: function()  #: waits for records that are away
    may_end: Callable[[], bool] = lambda: True  #: asked right before the end is recorded

    def run(self, plan: BatchPlan, spark: SparkSession, progress: Progress | None = None) -> BatchResult:
        """Executes and commits; only commits if an earlier attempt has recorded the end.

        Args:
            progress: of the stages of `plan`; shows how far they have come.

        Raises:
            WeirError: a task failed for good, or the attempt was superseded; nothing is visible.
        """
        recorded = self.patiently(self.records.final_savepoint)
        try:
            if recorded is not None:
                self._commit(read_manifest(self.store, recorded))
                return BatchResult(rows={})
            prepared = execute(spark, plan.stages, self.facts, self.group, frames=plan.frames, progress=progress)
            self._check_there(prepared)
            self._commit(self._recorded(prepared))
        finally:
            self._clean()
        rows = {uid: sum(each.rows for each in prepared if each.sink == uid) for uid in self.job.sinks}
        log.info("committed a batch run", rows=rows)
        return BatchResult(rows=rows)

    @property
    def facts(self) -> Job:
        return Job(name=self.job_id, max_parallelism=self.job.graph.max_parallelism, token=self.token)

    @property
    def group(self) -> str:
        """The Spark job group."""
        return f"{self.job_id}-{self.token}"

    def _commit(self, manifest: Manifest) -> None:
        """Of a recorded manifest. May be repeated."""
        permit = permit_for_recorded(manifest, self.token)
        for uid, committables in owed(manifest).items():
            committer = self.job.sinks[uid].committer()
            committer.commit(permit, committables)
            committer.commit_epoch(permit, committables)
        note_committed(self.store, manifest, None)

    def _check_there(self, prepared: Sequence[Prepared]) -> None:
        """The record promises that the output can be committed, so this process must see it."""
        for each in prepared:
            missing = self.job.sinks[each.sink].committer().missing(each.committables)
            if missing:
                raise EnvironmentFailure(f"sink {each.sink!r}: a task has written {missing[0]}, which is not seen here")

    def _recorded(self, prepared: Sequence[Prepared]) -> Manifest:
        if not self.may_end():
            raise WeirError("the run was left before its end was recorded")
        checkpoint = self.patiently(self.records.next_checkpoint_id)
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
        done = self.patiently(partial(complete, self.store, self.records, manifest, (), now))
        if done is not True:
            raise EnvironmentFailure(done) if isinstance(done, str) else Superseded
        return manifest

    @staticmethod
    def _snapshot(uid: OperatorId, parallelism: int, prepared: Sequence[Prepared]) -> OperatorSnapshot:
        written = [each.committables for each in prepared if each.sink == uid]
        subtasks = {
            number: SubtaskSnapshot(finished=True, committables=committables)
            for number, committables in enumerate(written)
        }
        return OperatorSnapshot(parallelism=parallelism, finished=FinishedState.FINISHED, subtasks=subtasks)

    def _clean(self) -> None:
        """Removes what tries that were not committed, and older attempts, have left in the output folders."""
        try:
            retained = [read_manifest(self.store, folder) for folder in self.records.retained()]
        except (CorruptState, JobRejected) as error:
            log.error("a retained checkpoint is unreadable: leftovers of output stay", error=str(error))
            return
        for uid, sink in self.job.sinks.items():
            keep = retained_committables(retained, uid)
            sink.committer().clean(self.job_id, uid, Token(self.token + 1), keep)


class Superseded(WeirError):
    """A newer attempt has taken over; this one commits nothing."""
