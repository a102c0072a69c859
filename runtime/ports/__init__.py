"""The ports of the runtime: operators, sources, sinks, storage, channels, the clock.

A port states the guarantees that the runtime needs. Each port has an in-memory implementation. A contract test runs
against the in-memory and the production implementation.
"""

from runtime.ports.channels import Exchange, ExchangeListener
from runtime.ports.connectors import BindsUid, HasStandingStage, StageFolders, UsesFolders, UsesUrls
from runtime.ports.operators import Capture, Collector, ListState, Operator, OperatorContext, StateStore
from runtime.ports.sinks import (
    ChecksColumns,
    DeliversEpochs,
    EncodesRows,
    EpochTarget,
    ErrorPolicy,
    ExpiringOutput,
    HasIndependentWriters,
    HoldsDeadLetters,
    OutputEpoch,
    Sink,
    SinkCommitter,
    SinkWriter,
    WritesAtOnce,
)
from runtime.ports.sources import (
    DescribesColumns,
    EmitsChangelog,
    EncodesTexts,
    HasParts,
    KnowsEventTime,
    LeavesOutColumns,
    ListsInput,
    NumberedRows,
    NumbersRows,
    ReadsAlone,
    ReleasesInput,
    RepeatsOrder,
    Source,
    SourceReader,
    StatesDisorder,
)
from runtime.ports.storage import Clock, SnapshotStore

__all__ = [
    "BindsUid",
    "Capture",
    "ChecksColumns",
    "Clock",
    "Collector",
    "DeliversEpochs",
    "DescribesColumns",
    "EmitsChangelog",
    "EncodesRows",
    "EncodesTexts",
    "EpochTarget",
    "ErrorPolicy",
    "Exchange",
    "ExchangeListener",
    "ExpiringOutput",
    "HasIndependentWriters",
    "HasParts",
    "HasStandingStage",
    "HoldsDeadLetters",
    "KnowsEventTime",
    "LeavesOutColumns",
    "ListState",
    "ListsInput",
    "NumberedRows",
    "NumbersRows",
    "Operator",
    "OperatorContext",
    "OutputEpoch",
    "ReadsAlone",
    "ReleasesInput",
    "RepeatsOrder",
    "Sink",
    "SinkCommitter",
    "SinkWriter",
    "SnapshotStore",
    "Source",
    "SourceReader",
    "StageFolders",
    "StateStore",
    "StatesDisorder",
    "UsesFolders",
    "UsesUrls",
    "WritesAtOnce",
]
