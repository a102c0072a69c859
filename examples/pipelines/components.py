"""Connected components of a growing graph: labels circulate in a loop until no vertex has a smaller label to send.

Each edge becomes two messages, to both of its ends. A vertex stores its neighbours and the smallest label it has
received, at first its own number. When its label falls, it sends the label to its neighbours and to the output. So
every vertex ends with the smallest number of its component. Labels only fall: the loop terminates with the same labels
for any order of messages, and each fall is written exactly once.
"""

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

import weir

EDGE_SCHEMA = pa.schema(
    [pa.field("source", pa.int64(), nullable=False), pa.field("target", pa.int64(), nullable=False)]
)  #: columns of the input files
MESSAGE_SCHEMA = pa.schema(
    [
        ("vertex", pa.int64()),  #: the receiver
        ("value", pa.int64()),
        ("links", pa.bool_()),  #: true: `value` is a new neighbour; false: `value` is a label
    ]
)
LABEL_UPDATES = MESSAGE_SCHEMA.append(
    pa.field("final", pa.bool_())
)  #: `final`: the row is a new label for the output, not a message to the vertex


class ComponentsParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`edges_dir`: CSV files with the columns source and target. `bounded`: read the existing files, then end."""

    edges_dir: str
    output_dir: str
    bounded: bool = False


class Labels(weir.KeyedProcessFunction):
    """The label and the neighbours of a vertex, which is the key."""

    def open(self, context: weir.ProcessContext) -> None:
        self._label = context.value_state("label")
        self._neighbours = context.map_state("neighbours")

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        vertex, value = row["vertex"], row["value"]
        if self._label.get() is None:
            self._lower_label(vertex, vertex, out)
        if not row["links"]:
            if value < self._label.get():
                self._lower_label(vertex, value, out)
        elif value not in self._neighbours:
            self._neighbours[value] = True
            _send_label(value, self._label.get(), out)

    def _lower_label(self, vertex: int, label: int, out: weir.RowCollector) -> None:
        self._label.update(label)
        out.emit({"vertex": vertex, "value": label, "links": False, "final": True})
        for neighbour in self._neighbours:
            _send_label(neighbour, label, out)


def _send_label(vertex: int, label: int, out: weir.RowCollector) -> None:
    out.emit({"vertex": vertex, "value": label, "links": False, "final": False})


def to_both_ends(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Each edge as two messages, to both of its ends."""
    source, target = batch["source"], batch["target"]
    links = pa.repeat(True, 2 * batch.num_rows)
    columns = [pa.concat_arrays([source, target]), pa.concat_arrays([target, source]), links]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


def messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The messages that stay in the loop."""
    return batch.filter(pc.invert(batch["final"])).select(MESSAGE_SCHEMA.names)


def labels(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The new labels, for the output."""
    return batch.filter(batch["final"]).select(["vertex", "value"]).rename_columns(["vertex", "component"])


def build(params: ComponentsParams, context: weir.PipelineContext) -> weir.Dataflow:
    flow = weir.Dataflow("components")
    edges = flow.source(
        "edges", weir.DirectorySource(params.edges_dir, weir.CsvFormat(EDGE_SCHEMA), bounded=params.bounded)
    )
    loop = edges.map_batches("ends", to_both_ends, repeatable=True).iterate("loop")
    updates = loop.key_by("vertex").process("labels", Labels, LABEL_UPDATES)
    loop.close_with(updates.map_batches("messages", messages, repeatable=True))
    updates.map_batches("updates", labels, repeatable=True).sink("parquet", weir.ParquetSink(params.output_dir))
    return flow


PIPELINE = weir.Pipeline(
    name="components",
    description="Labels each vertex of a growing graph with the smallest number in its connected component.",
    params=ComponentsParams,
    build=build,
)
