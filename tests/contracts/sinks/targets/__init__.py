"""The targets of the contract suite: for each sink, how a test makes its target, writes to it and reads it back.

A new sink needs a class in a module of this package and a line in `TARGETS`; every test of the suite then runs on it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.contracts.sinks.targets.buckets import DeltaBucket, IcebergBucket, JsonLinesBucket, ParquetBucket
from tests.contracts.sinks.targets.files import CompactedFolder, JsonLinesFolder, ParquetFolder, PartitionedFolder
from tests.contracts.sinks.targets.kafka import (
    ApacheKafkaTopic,
    KafkaTopic,
    StagedApacheKafkaTopic,
    StagedKafkaTopic,
)
from tests.contracts.sinks.targets.postgres import PostgresPrepared, PostgresStaged
from tests.contracts.sinks.targets.tables import DeltaFolder, IcebergTable
from tests.contracts.sinks.targets.target import Place, Server, Target
from tests.contracts.sinks.targets.webhook import HeldWebhook

__all__ = ["TARGETS", "NewTarget", "Place", "Server", "Target"]

NewTarget = Callable[[type[Target], Path], Target]  #: of a kind, with its files in a folder

TARGETS: Final[tuple[type[Target], ...]] = (
    ParquetFolder,
    PartitionedFolder,
    CompactedFolder,
    JsonLinesFolder,
    DeltaFolder,
    IcebergTable,
    DeltaBucket,
    IcebergBucket,
    ParquetBucket,
    JsonLinesBucket,
    KafkaTopic,
    StagedKafkaTopic,
    ApacheKafkaTopic,
    StagedApacheKafkaTopic,
    PostgresStaged,
    PostgresPrepared,
    HeldWebhook,
)
