"""The inputs of a step: a stream, and its partitioning over the subtasks of the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from runtime.core.job.graph import EdgeSpec, Partitioning
from runtime.core.job.ids import OperatorId
from runtime.dataflow.checks import with_uid_in_errors
from runtime.dataflow.plan import Edge, PreAggregation
from runtime.dataflow.used_columns import ColumnUse
from runtime.errors import JobRejected
from runtime.operators.aggregates import Aggregate, AggregateSet
from runtime.operators.partition import Partitioner, check_partition_columns
from runtime.state.index.key_codec import plain_type
from runtime.state.index.key_types import check_keys

if TYPE_CHECKING:
    from runtime.dataflow.builder import Dataflow
    from runtime.dataflow.stream import Stream


@dataclass(frozen=True)
class CustomPartitioning:
    """Custom partitioning by columns and an author's function."""

    columns: tuple[str, ...]
    function: Partitioner


class Changelog(Enum):
    """A stream whose column `op` marks rows that take back earlier rows (Flink: upsert stream and retract stream)."""

    UPSERT = auto()  #: such a row may have its key only, and an update may lack its `update_before`
    RETRACT = auto()  #: such a row has all values of the row that it takes back


class ChangelogUse(Enum):
    """The use of a changelog by a step."""

    REFUSED = auto()  #: it would treat such rows as new rows
    FORWARDED = auto()  #: `op` goes on with its row
    READ = auto()  #: it reads `op`; its output is no changelog
    SUBTRACTED = auto()  #: it subtracts the rows that are taken back, which needs all their values


@dataclass(frozen=True, kw_only=True)
class StepInput:
    """An input of a step. FORWARD is replaced by the stream's custom partitioning, if any.

    Args:
        keys: key columns, with HASH.
        build: the build side of a join.
        feedback: a back-edge of a loop.
        state: name of the keyed table of the step, and the aggregates in it.
        drift_ms: rows that are ahead of the slowest source by more than this wait in the step in any case, so that
            sources may be paused there; None: rows do not wait.
        use: the columns that the step reads; None: all.
        takes_encoded_texts: the step reads dictionary-encoded texts (`state.encoded_texts`).
        changelog: the use of a changelog, if the stream is one.
        no_retraction: why the step cannot take back rows of an aggregate, and what to do instead, for the refusal.
    """

    stream: Stream
    partitioning: Partitioning = Partitioning.FORWARD
    keys: tuple[str, ...] = ()
    build: bool = False
    feedback: bool = False
    pre_aggregation: PreAggregation | None = None
    state: tuple[str, Mapping[str, Aggregate]] | None = None
    drift_ms: int | None = None
    use: ColumnUse | None = None
    takes_encoded_texts: bool = False
    changelog: ChangelogUse = ChangelogUse.REFUSED
    no_retraction: str = ""

    def check(self, flow: Dataflow, target: OperatorId) -> None:
        """Raises JobRejected unless the stream is a stream of `flow` that `target` can read."""
        if not hasattr(self.stream, "custom_partitioning"):
            raise JobRejected("bad-input", target, "its input must be a stream without keys: leave out the key_by")
        if self.stream.flow is not flow:
            detail = f"its input {self.stream.uid!r} belongs to another dataflow, {self.stream.flow.name!r}"
            raise JobRejected("bad-input", target, detail)
        if self.stream.custom_partitioning is not None and self.partitioning is not Partitioning.FORWARD:
            detail = f"its input uses {self.partitioning} partitioning: leave out the partition_custom before it"
            raise JobRejected("bad-partitioning", target, detail)
        if self.stream.changelog is not None and self.changelog is ChangelogUse.REFUSED:
            advice = self.no_retraction if self.stream.changelog is Changelog.RETRACT else ""
            detail = (
                f"its input {self.stream.uid!r} is a changelog: rows with op 'update_before' or 'delete' take back "
                f"earlier rows, and this step would treat them as new rows. {advice}Read the column 'op' before it, in "
                "a filter, select, with_columns or a function"
            )
            raise JobRejected("changelog-input", target, detail)
        if self.stream.changelog is Changelog.UPSERT and self.changelog is ChangelogUse.SUBTRACTED:
            detail = (
                f"its input {self.stream.uid!r} is a changelog: its rows with op 'delete' may have their key only, and "
                "its updates may lack the row before them, so no aggregate can subtract them. Keep the last row of "
                "each key in a keyed function before it, which reads 'op' and emits the signed changes"
            )
            raise JobRejected("changelog-input", target, detail)

    @property
    def forwarded_changelog(self) -> Changelog | None:
        """The changelog that the output of the step is, unless it lacks the column `op`."""
        return self.stream.changelog if self.changelog is ChangelogUse.FORWARDED else None

    def edge(self, target: OperatorId, number: int) -> Edge:
        """The edge into input `number` of `target`.

        Raises:
            JobRejected: the keys, the columns of a custom partitioning, or the aggregates do not fit the stream.
        """
        custom = self.stream.custom_partitioning
        if custom is not None and self.stream.columns is not None:
            check_partition_columns(self.stream.columns, custom.columns, target)
        spec = EdgeSpec(
            source=self.stream.uid,
            target=target,
            input=number,
            partitioning=self.partitioning if custom is None else Partitioning.CUSTOM,
            keys=self.keys if custom is None else custom.columns,
            key_types=self._key_types(target) if self.partitioning is Partitioning.HASH else (),
            value_types=self._value_types(target),
            build=self.build,
            feedback=self.feedback,
            output=self.stream.output,
        )
        return Edge(
            spec=spec,
            partitioner=None if custom is None else custom.function,
            pre_aggregation=self.pre_aggregation,
            drift_ms=self.drift_ms,
            use=self.use,
            takes_encoded_texts=self.takes_encoded_texts,
        )

    def _key_types(self, target: OperatorId) -> tuple[str, ...]:
        """The types of key columns; empty if the columns of the stream are unknown.

        Raises:
            JobRejected: a column is missing, or its type cannot be a key.
        """
        columns = self.stream.columns
        if columns is None:
            return ()
        check_keys(columns, self.keys, target)
        return tuple(str(plain_type(columns.field(key).type)) for key in self.keys)

    def _value_types(self, target: OperatorId) -> tuple[tuple[str, str], ...]:
        """The state columns of aggregates and their types; empty if the columns of the stream are unknown.

        Raises:
            JobRejected: an aggregate cannot be computed from the stream's columns.
        """
        columns = self.stream.columns
        if columns is None or self.state is None:
            return ()
        table, aggregates = self.state
        layout = AggregateSet(aggregates)
        types = with_uid_in_errors(target, lambda: layout.state_types(columns))
        return tuple((f"{table}.{name}", str(kind)) for name, kind in zip(layout.fields().names, types, strict=True))


def rules_input(rules: Stream) -> StepInput:
    """A second stream whose rows every subtask passes to `process_broadcast`."""
    return StepInput(stream=rules, partitioning=Partitioning.BROADCAST, changelog=ChangelogUse.READ)
