"""Side outputs of a step: further streams beside its main output, each with a name and columns (Flink: `OutputTag`)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from runtime.errors import JobRejected
from runtime.operators.arguments import argument_error, check_schema


@dataclass(frozen=True)
class OutputTag:
    """A side output.

        LATE = weir.OutputTag("late", schema)
        made = stream.process("split", Split, schema, side_outputs=[LATE])  # calls out.emit_to(LATE, row)
        made.side_output(LATE).sink("late", weir.ParquetSink("/late"))

    Args:
        name: unique among the side outputs of a step.
        schema: columns of the rows; missing columns are null, unknown columns are refused.
    """

    name: str
    schema: pa.Schema

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise JobRejected("bad-output-tag", "name", f"a side output needs a name, not {self.name!r}")
        check_schema(self.name, self.schema)


def check_tags(uid: str, tags: object) -> tuple[OutputTag, ...]:
    """The side outputs of operator `uid`. Raises JobRejected: a value is no tag, or two tags have the same name."""
    if isinstance(tags, OutputTag) or not isinstance(tags, Iterable):
        raise argument_error(uid, "side_outputs", f"must be a list of OutputTag, not {tags!r}")
    side_outputs = tuple(tags)
    for tag in side_outputs:
        if not isinstance(tag, OutputTag):
            raise argument_error(uid, "side_outputs", f"must be a list of OutputTag, but contains {tag!r}")
        if sum(other.name == tag.name for other in side_outputs) > 1:
            raise argument_error(uid, "side_outputs", f"names the output {tag.name!r} twice")
    return side_outputs


def unknown_output_error(uid: str, name: str, tags: Mapping[str, object] | Iterable[str]) -> JobRejected:
    """The error for a side output that operator `uid` does not declare."""
    declared = ", ".join(repr(each) for each in tags) or "none"
    return JobRejected("unknown-output", uid, f"it has no side output {name!r}; declared in side_outputs: {declared}")
