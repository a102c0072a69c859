"""The partitions of topics and their offsets, as a broker has them at present."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from runtime.connectors.kafka.connection import KafkaConnection
from runtime.errors import JobRejected
from runtime.libraries import import_library

Partition = tuple[str, int]  #: topic and number
TopicIds = Mapping[str, str]  #: the broker's id of each topic, in hexadecimal digits; a topic made anew gets another
OffsetRange = tuple[int, int]  #: first offset, and the offset behind the last; `NO_END` if the source is unbounded
Start = Literal["earliest", "latest"] | datetime

NO_END: Final = -1
_LISTING: Final = tuple[list[tuple[str, int, int, int]], dict[str, str]]
_TIMES_OF_ENDS: Final[Mapping[str, int]] = {"earliest": -2, "latest": -1}  #: in the request ListOffsets


@dataclass(frozen=True)
class TopicOffsets:
    """Requests about `topics`. Each blocks for `timeout_s` of the connection at most. Thread-safe.

    Args:
        consumer: makes the requests. A producer or an admin client could create a topic, and an admin client can end
            the process after an outage. Its isolation level decides whether the newest offset is that behind open
            transactions.
    """

    connection: KafkaConnection
    topics: Sequence[str]
    consumer: Any

    def partitions(self) -> list[Partition]:
        """All partitions.

        Raises:
            JobRejected: a topic is missing, or the login is refused.
            EnvironmentFailure: no broker answers.
        """
        partitions = []
        for topic in self.topics:
            what = f"topic {topic!r}"
            described = self.connection.list_topics(self.consumer, what, topic=topic)[topic]
            if described.error is not None:
                raise self.connection.failure_of(described.error, what)
            partitions += [(topic, number) for number in described.partitions]
        return partitions

    def topic_ids(self) -> TopicIds:
        """The id of each topic. Empty: Kafka before 3.1, or `ask` lacks the mechanism of the login.

        Raises:
            EnvironmentFailure: no broker answers.
        """
        if not self.connection.can_ask:
            return {}
        topics = self.connection.metadata(f"topic {', '.join(map(repr, self.topics))}", self.topics).topics
        return {each.name: each.topic_id.hex for each in topics if each.topic_id}

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
        library = import_library("confluent_kafka", "kafka")
        time = int(start.timestamp() * 1_000) if isinstance(start, datetime) else _TIMES_OF_ENDS[start]
        requests = [library.TopicPartition(*partition, time) for partition in partitions]
        what = f"offsets of topics {', '.join(self.topics)}"
        with self.connection.call(what, self.consumer):
            answers = self.consumer.offsets_for_times(requests, self.connection.timeout_s)
        offsets: dict[Partition, int] = {}
        for place in answers:
            if place.error is not None:
                what = f"offset of topic {place.topic!r}, partition {place.partition}"
                raise self.connection.failure_of(place.error, what)
            offsets[place.topic, place.partition] = place.offset
        unknown = [partition for partition, offset in offsets.items() if offset < 0]
        return offsets | (self.offsets(unknown, "latest") if isinstance(start, datetime) else {})


def check_topic_ids(former: TopicIds, present: TopicIds) -> None:
    """Raises JobRejected if a topic was deleted and made anew: its offsets belong to other messages."""
    for topic, identity in sorted(former.items()):
        if present.get(topic, identity) != identity:
            detail = (
                f"topic {topic!r} was deleted and created anew (its id was {identity} and is {present[topic]}), so the "
                "offsets of the job belong to other messages. Start the job without a checkpoint to read the new topic "
                "from `start` on"
            )
            raise JobRejected("topic-created-anew", "topics", detail)


def encode_listing(ranges: Mapping[Partition, OffsetRange], ids: TopicIds) -> bytes:
    return msgspec.msgpack.encode(([(*partition, *each) for partition, each in ranges.items()], ids))


def decode_listing(listing: bytes) -> tuple[dict[Partition, OffsetRange], TopicIds]:
    rows, ids = msgspec.msgpack.decode(listing, type=_LISTING)
    return {(topic, number): (first, end) for topic, number, first, end in rows}, ids
