"""The partitions of topics and their offsets, as a broker has them at present."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from runtime.connectors.kafka.connection import KafkaConnection
from runtime.connectors.libraries import import_library

Partition = tuple[str, int]  #: topic and number
OffsetRange = tuple[int, int]  #: first offset, and the offset behind the last; `NO_END` if the source is unbounded
Start = Literal["earliest", "latest"] | datetime

NO_END: Final = -1
_LISTING: Final = list[tuple[str, int, int, int]]


@dataclass(frozen=True)
class TopicOffsets:
    """Requests about `topics`. Each blocks for `timeout_s` of the connection at most.

    Args:
        read_uncommitted: whether the newest offset is that behind open transactions.
    """

    connection: KafkaConnection
    topics: Sequence[str]
    read_uncommitted: bool

    def partitions(self, consumer: Any) -> list[Partition]:
        """All partitions. A consumer asks: the same request of a producer or an admin client could create a topic.

        Raises:
            JobRejected: a topic is missing, or the login is refused.
            EnvironmentFailure: no broker answers.
        """
        found = []
        for topic in self.topics:
            what = f"topic {topic!r}"
            described = self.connection.list_topics(consumer, what, topic=topic)[topic]
            if described.error is not None:
                raise self.connection.failure_of(described.error, what)
            found += [(topic, number) for number in described.partitions]
        return found

    def ranges(self, partitions: Sequence[Partition], start: Start, *, bounded: bool) -> dict[Partition, OffsetRange]:
        """The offsets from `start` on; of a bounded source to the newest message.

        Raises:
            WeirError: as `partitions`.
        """
        starts = self.offsets(partitions, start)
        ends = self.offsets(partitions, "latest") if bounded else {}
        return {partition: (offset, ends.get(partition, NO_END)) for partition, offset in starts.items()}

    def offsets(self, partitions: Sequence[Partition], start: Start) -> dict[Partition, int]:
        """The offset of `start` in each partition. A time after the last message is the end of the partition."""
        if not partitions:
            return {}
        library, admin = import_library("confluent_kafka", "kafka"), import_library("confluent_kafka.admin", "kafka")
        specs = {"earliest": admin.OffsetSpec.earliest, "latest": admin.OffsetSpec.latest}
        if isinstance(start, datetime):
            spec = admin.OffsetSpec.for_timestamp(int(start.timestamp() * 1_000))
        else:
            spec = specs[start]()
        levels = library.IsolationLevel
        level = levels.READ_UNCOMMITTED if self.read_uncommitted else levels.READ_COMMITTED
        asked = {library.TopicPartition(topic, number): spec for topic, number in partitions}
        client = self.connection.admin()  # its requests end with it
        futures = client.list_offsets(asked, isolation_level=level, request_timeout=self.connection.timeout_s)
        found: dict[Partition, int] = {}
        for place, future in futures.items():
            try:
                found[place.topic, place.partition] = future.result().offset
            except library.KafkaException as error:
                what = f"offset of topic {place.topic!r}, partition {place.partition}"
                raise self.connection.failure(error, what) from error
        unknown = [partition for partition, offset in found.items() if offset < 0]
        return found | (self.offsets(unknown, "latest") if isinstance(start, datetime) else {})


def encode_listing(ranges: Mapping[Partition, OffsetRange]) -> bytes:
    return msgspec.msgpack.encode([(*partition, *each) for partition, each in ranges.items()])


def decode_listing(listing: bytes) -> dict[Partition, OffsetRange]:
    rows = msgspec.msgpack.decode(listing, type=_LISTING)
    return {(topic, number): (first, end) for topic, number, first, end in rows}
