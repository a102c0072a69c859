"""The interfaces of connectors and operators, for authors of a source, sink, format or operator of their own.

    class Numbers(weir.spi.SourceReader): ...

- A source is a value that satisfies `Source`; it makes a `SourceReader` for each subtask. `DescribesColumns`,
  `EmitsChangelog`, `KnowsEventTime`, `StatesDisorder`, `ReadsAlone` and `ReleasesInput` are optional.
- A sink is a value that satisfies `Sink`; it makes a `SinkWriter` for each subtask and a `SinkCommitter` (two-phase
  commit). `ChecksColumns`, `ExpiringOutput` and `HasIndependentWriters` are optional.
- An `EpochTarget` writes the rows of a checkpoint once it has completed; `weir.WriteAheadSink` holds them until then.
- A format satisfies `Format` and turns a file into `Chunk`s. A `ScannedFormat` also reads parts of files (`Scan`), and
  files of object stores.
- An `Operator` of `Stream.transform` changes batches; its docstring lists the hooks and the order of their calls.
- `resolve_secrets` replaces `${secret:NAME}` in an option by its value, where the job runs, for the hosts that get it.
- `named_connection` reads `${connection:NAME}`; `connect_postgres` connects to such a connection or to an address.
- Connectors that read or write folders satisfy `UsesFolders` and use each folder through a `CheckedFolder`.

All of them are pickled by cloudpickle and sent to the slots.
"""

from typing import TYPE_CHECKING, Any

from runtime.access.data_roots import CheckedFolder
from runtime.access.secrets import check_hosts, named_connection
from runtime.access.secrets import resolve as resolve_secrets
from runtime.connectors.formats.base import Chunk, Format, Malformed, MalformedFile, ScannedFormat
from runtime.connectors.formats.input_file import InputFile, Scan
from runtime.core.job.graph import Guarantee
from runtime.core.job.ids import Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.libraries import import_part
from runtime.ports import (
    ChecksColumns,
    Collector,
    DescribesColumns,
    EmitsChangelog,
    EpochTarget,
    ExpiringOutput,
    HasIndependentWriters,
    KnowsEventTime,
    ListsInput,
    Operator,
    OperatorContext,
    OutputEpoch,
    ReadsAlone,
    ReleasesInput,
    Sink,
    SinkCommitter,
    SinkWriter,
    Source,
    SourceReader,
    StatesDisorder,
    StateStore,
    UsesFolders,
)
from runtime.state.index.hashing import key_groups

if TYPE_CHECKING:
    from runtime.connectors.postgres.connection import connect as connect_postgres
else:

    def __getattr__(name: str) -> Any:  # its library is an extra
        if name == "connect_postgres":
            return import_part("runtime.connectors.postgres.connection").connect
        raise AttributeError(f"module 'weir.spi' has no attribute {name!r}")


__all__ = [
    "CheckedFolder",
    "ChecksColumns",
    "Chunk",
    "Collector",
    "CommitPermit",
    "DescribesColumns",
    "EmitsChangelog",
    "EpochTarget",
    "ExpiringOutput",
    "Format",
    "Guarantee",
    "HasIndependentWriters",
    "InputFile",
    "KnowsEventTime",
    "ListsInput",
    "Malformed",
    "MalformedFile",
    "Operator",
    "OperatorContext",
    "OutputEpoch",
    "ReadsAlone",
    "ReleasesInput",
    "Scan",
    "ScannedFormat",
    "Sink",
    "SinkCommitter",
    "SinkWriter",
    "Source",
    "SourceReader",
    "StateStore",
    "StatesDisorder",
    "Token",
    "UsesFolders",
    "check_hosts",
    "connect_postgres",
    "key_groups",
    "named_connection",
    "resolve_secrets",
]
