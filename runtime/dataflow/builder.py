"""The builder for job authors: a `Dataflow` of named steps, compiled into a `JobGraph` with its code.

The builder collects steps and edges and refuses jobs that cannot run. It starts no job.
    flow = Dataflow("wordcount")
    lines = flow.source("lines", DirectorySource("/in", LineFormat()))
    words = lines.flat_map("words", lambda row: [{"word": w} for w in row["line"].split()], schema)
    words.key_by("word").aggregate("counts", {"count": Count()}).sink("out", ParquetSink("/out"))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from runtime.core.job.graph import Guarantee, Role
from runtime.core.job.guarantee import CheckpointMode, end_to_end_guarantee, is_weaker
from runtime.core.job.ids import OperatorId
from runtime.core.job.key_groups import default_max_parallelism
from runtime.dataflow.connectors import as_guarantee, guarantee_of, prepare_connector
from runtime.dataflow.inputs import Changelog, StepInput
from runtime.dataflow.plan import CompiledJob, DataflowPlan, Step
from runtime.dataflow.stream import Stream
from runtime.errors import JobRejected
from runtime.operators.arguments import check_drift, check_parallelism
from runtime.operators.column_difference import check_distinct_columns
from runtime.operators.output_tag import OutputTag
from runtime.ports import DescribesColumns, EmitsChangelog, Operator, Sink, Source


@dataclass
class Dataflow:
    """A job under construction.

    Every step has a *uid*, a name that the author chooses and never changes. Checkpoints store the state of a step
    under its uid, and a restore assigns the state to the step with this uid. A step with a new uid starts with empty
    state. A restore that would drop the state of a missing uid is refused, unless the user allows it. Errors, metrics
    and the console name steps by uid.

    Args:
        name: shown in the console; state belongs to the job, not to this name.
        max_parallelism: number of key groups, fixed at the job's first run; None: derived from the parallelism, at
            least 128. A job in the console keeps the number of its first version.
        required_guarantee: "exactly-once", "at-least-once" or "none". A job whose sources and sinks give a weaker
            end-to-end guarantee is refused. By default no record may be lost, and some may be repeated.
    """

    name: str
    max_parallelism: int | None = None
    required_guarantee: str = Guarantee.AT_LEAST_ONCE
    _plan: DataflowPlan = field(default_factory=DataflowPlan)

    def source(
        self,
        uid: str,
        source: Source,
        *,
        max_drift: timedelta | None = None,
        parallelism: int | None = None,
        name: str = "",
    ) -> Stream:
        """Adds a source.

        Args:
            uid: unique among the steps of the job: a letter, then letters, digits, `_`, `.` or `-`, 64 at most. State
                depends on it; see `Dataflow`.
            source: an instance of a connector, such as `weir.KafkaSource(...)`, or an author's own `weir.spi.Source`.
            max_drift: watermark alignment (FLIP-182). A subtask of the source pauses while its watermark is ahead of
                the slowest subtask, or of another source of the same step, by more than this. State of joins and
                process functions then stays small, but rows may come later. A slower sibling that makes no progress
                ends the pause after a second. None: pauses only where all rows wait for windows anyway.
            parallelism: number of subtasks, at most that of the job. None: the parallelism of the job.
            name: shown in the console; "": the uid.

        Raises:
            JobRejected: an argument or a setting of the source is invalid; the error names the uid.
        """
        source = prepare_connector(uid, "source", source)
        if max_drift is not None:
            self._plan.max_drifts_ms[OperatorId(uid)] = check_drift(uid, max_drift)
        guarantee = guarantee_of(uid, source)
        read = self._add(uid, name, Role.SOURCE, parallelism, source, bounded=source.bounded, guarantee=guarantee)
        columns = source.output_columns() if isinstance(source, DescribesColumns) else None
        if columns is not None:
            check_distinct_columns(columns, uid)
        emits_changelog = isinstance(source, EmitsChangelog) and source.emits_changelog
        return replace(read, columns=columns, changelog=Changelog.UPSERT if emits_changelog else None)

    @property
    def sources(self) -> Mapping[OperatorId, Source]:
        """Sources by uid."""
        return {step.uid: step.code for step in self._plan.steps if step.role is Role.SOURCE}

    @property
    def sinks(self) -> Mapping[OperatorId, Sink]:
        """Sinks by uid."""
        return dict(self._plan.sinks)

    def isolate(self, sink: Sink) -> None:
        """Cuts the job off from its targets: rows of every sink go to `sink`, and sources confirm nothing.

        For a clone of a job that runs elsewhere. Functions of the author keep their own effects.
        """
        self._plan.isolate(sink)

    def compile(self, parallelism: int) -> CompiledJob:
        """Resolves the graph for a parallelism (number of slots). Raises JobRejected naming the operator at fault."""
        groups = default_max_parallelism(parallelism) if self.max_parallelism is None else self.max_parallelism
        self._check_guarantee()
        return self._plan.compile(self.name, parallelism, groups)

    def _check_guarantee(self) -> None:
        """Refuses a job whose sources and sinks give less than the author requires."""
        minimum = as_guarantee("required_guarantee", self.required_guarantee)
        result = end_to_end_guarantee(CheckpointMode.EXACTLY_ONCE, self._plan.connectors())
        if is_weaker(result.guarantee, minimum):
            accept = f"to accept this, set required_guarantee={str(result.guarantee)!r} in Dataflow"
            raise JobRejected("weak-guarantee", self.name, f"{' '.join(result.reasons)} The job is refused: {accept}")

    # ------------------------------------------------------------ for the streams

    def _add(
        self,
        uid: str,
        name: str,
        role: Role,
        parallelism: int | None,
        code: Any,
        bounded: bool = False,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        durations: Mapping[str, int] | None = None,
        aggregates: tuple[tuple[str, str], ...] = (),
        times: tuple[str, ...] = (),
    ) -> Stream:
        """Adds a step without inputs."""
        check_parallelism(uid, parallelism)
        step = Step(
            uid=OperatorId(uid),
            name=name or uid,
            role=role,
            parallelism=parallelism,
            bounded=bounded,
            guarantee=guarantee,
            durations=durations or {},
            aggregates=aggregates,
            times=times,
            code=code,
        )
        self._plan.steps.append(step)
        return Stream(self, step.uid)

    def _add_operator(
        self,
        uid: str,
        make: Callable[[], Operator],
        inputs: Sequence[StepInput],
        parallelism: int | None = None,
        *,
        columns: pa.Schema | None = None,
        side_outputs: tuple[OutputTag, ...] = (),
        without_event_time: str = "",
        durations: Mapping[str, int] | None = None,
        times: tuple[str, ...] = (),
    ) -> Stream:
        """Adds an operator and an edge per input, in the order of their numbers.

        Args:
            columns: columns of the output; None: unknown.
            side_outputs: further outputs.
            without_event_time: the consequence of an input without watermarks, for the error; "": none.
            durations: the durations that its state depends on, in milliseconds by name.
            times: by input, the column of times that its state depends on.
        """
        aggregates = tuple(
            (name, aggregate.definition)
            for each in inputs
            if each.state is not None
            for name, aggregate in each.state[1].items()
        )
        stream = self._add(
            uid, "", Role.OPERATOR, parallelism, make, durations=durations, aggregates=aggregates, times=times
        )
        for number, each in enumerate(inputs):
            self._connect(stream.uid, each, number)
        self._plan.columns |= {(stream.uid, tag.name): tag.schema for tag in side_outputs}
        if without_event_time:
            self._plan.needs_event_time[stream.uid] = without_event_time
        forwarded = {each.forwarded_changelog for each in inputs} - {None}
        kind = Changelog.UPSERT if Changelog.UPSERT in forwarded else next(iter(forwarded), None)
        stream = replace(stream, changelog=kind, forwarded_changelog=kind, side_outputs=side_outputs)
        return stream.with_declared_columns(columns)

    def _with_columns(self, stream: Stream, columns: pa.Schema | None) -> Stream:
        """The stream, whose batches must have `columns`: its code could emit others."""
        if columns is not None:
            self._plan.columns[stream.uid, stream.output] = columns
        return stream.with_declared_columns(columns)

    def _connect(self, target: OperatorId, source: StepInput, number: int = 0) -> None:
        """Adds an edge into input `number` of `target`. Raises JobRejected: the input does not fit."""
        source.check(self, target)
        self._plan.edges.append(source.edge(target, number))
