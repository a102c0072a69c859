"""Transactions of Kafka that outlive their producer, so that a commit may follow a crash of the producer.

Flink commits such a transaction by a producer that takes over id and epoch of the former producer
(`FlinkKafkaInternalProducer.resumeTransaction`). librdkafka has no such call, but the request itself is small: EndTxn
with transactional id, producer id and epoch (`wire`).

Transactional ids are pooled, as in Flink (FLIP-511). An id names its writer and the token of the attempt:

    <prefix>-<job>-<uid>-<token>-<subtask>-<random number of the writer>-<slot in the pool>

The random number keeps ids apart where two installations with equal prefixes, jobs and tokens share a cluster.

1. Each transaction of an id has an epoch of its own, because the writer initialises the id before each transaction. A
   repeated commit can therefore never commit a later transaction of the same id.
2. A consumer group with the name of the id is the record of its commits. A transaction writes its number, counted from
   1 per id, as the offset of the group (TxnOffsetCommit). The broker applies rows and offset together. An offset of at
   least n proves that transaction n has committed.
3. An id is used again only when its last transaction has committed, so the offset of a group never misses a number.
4. The group exists, with offset 0, before the id is initialised. The groups of older tokens are thus a list of all
   ids whose transactions may still be open; `clean` aborts them by initialising the id, then deletes the group.

Brokers keep offsets and ids for days after their last use (offsets.retention.minutes, transactional.id.expiration.ms).
A savepoint with a pending transaction is restored within transaction_timeout_ms or not at all, so this is long enough.

Without the group, two outcomes would look alike: a broker that answers a commit with "fenced" has either committed the
transaction before a later use of the id, or has aborted it. Flink takes the former for granted.
"""

import errno
import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from runtime.connectors.kafka.connection import KafkaConnection
from runtime.connectors.libraries import import_library
from runtime.connectors.names import encode_name
from runtime.core.job.ids import Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.ports import SinkCommitter

_ID_PATTERN: Final = re.compile(
    r"(?P<prefix>[\w.]+)-(?P<job>[\w.=]+)-(?P<uid>[\w.=]+)-(?P<token>\d+)-\d+-[0-9a-f]+-\d+", re.ASCII
)
_COMMIT_TRIES: Final = 60
_PAUSE_S: Final = 0.25
_CLEANING_THREADS: Final = 8

_IN_PROGRESS: Final = 51  #: CONCURRENT_TRANSACTIONS: the commit is decided and not finished
_MOVED: Final = frozenset({14, 15, 16})  #: the coordinator is loading, absent, or another broker
_GONE: Final[Mapping[int, str]] = {
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    49: "INVALID_PRODUCER_ID_MAPPING",
    59: "UNKNOWN_PRODUCER_ID",
    90: "PRODUCER_FENCED",
    105: "TRANSACTIONAL_ID_NOT_FOUND",
}
_REFUSED: Final[Mapping[int, str]] = {
    31: "CLUSTER_AUTHORIZATION_FAILED",
    53: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
}


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction whose rows and offset the broker has acknowledged. `rows`: their number."""

    id: str
    number: int
    producer: int
    epoch: int
    topic: str
    rows: int
    checkpoint: int

    def committable(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def new_writer_name(prefix: str, job: str, uid: str, token: Token, subtask: int) -> str:
    """The part that the ids of a writer share. Every call returns another name."""
    return f"{prefix}-{encode_id_part(job)}-{encode_id_part(uid)}-{token}-{subtask}-{secrets.token_hex(4)}"


def encode_id_part(name: str) -> str:
    """As `encode_name`, without `~`, which some brokers rewrite in the names of groups."""
    return encode_name(name).replace("~", "=")


class CommitRecord:
    """The groups that record the commits of transactional ids, as offsets of partition 0 of a topic. Thread-safe.

    The constructor blocks until a broker answers, since the first request of an admin client must find one: see
    `epochs.EpochRecord`. It raises EnvironmentFailure if none does.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._library = import_library("confluent_kafka", "kafka")
        self._admin = connection.admin()
        connection.list_topics(self._admin, "list of topics")

    def committed_number(self, transactional_id: str, topic: str) -> int:
        """The number of the last committed transaction of the id, whose messages go to `topic`; 0: none."""
        place = self._library.TopicPartition(topic, 0)
        asked = self._library.ConsumerGroupTopicPartitions(transactional_id, [place])
        try:
            # Stable offsets would be waited for, until the open transaction has ended.
            futures = self._admin.list_consumer_group_offsets(
                [asked], require_stable=False, request_timeout=self._connection.timeout_s
            )
            found = futures[transactional_id].result().topic_partitions[0]
        except self._library.KafkaException as error:
            raise self._connection.failure(error, f"commit record {transactional_id}") from error
        if found.error is not None:
            raise self._connection.failure_of(found.error, f"commit record {transactional_id}")
        return max(int(found.offset), 0)

    def check_topic_exists(self, topic: str) -> None:
        check_topic_exists(self._connection, self._admin, topic)

    def ids_of_older_attempts(self, prefix: str, job: str, uid: str, token: Token) -> list[str]:
        try:
            groups = self._admin.list_consumer_groups(request_timeout=self._connection.timeout_s).result().valid
        except self._library.KafkaException as error:
            raise self._connection.failure(error, "list of consumer groups") from error
        found = [(group.group_id, _ID_PATTERN.fullmatch(group.group_id)) for group in groups]
        owner = (prefix, encode_id_part(job), encode_id_part(uid))
        mine = [(name, own) for name, own in found if own and own.group("prefix", "job", "uid") == owner]
        return [name for name, own in mine if int(own["token"]) < token]

    def delete(self, transactional_ids: Sequence[str]) -> None:
        if not transactional_ids:
            return
        futures = self._admin.delete_consumer_groups(
            list(transactional_ids), request_timeout=self._connection.timeout_s
        )
        for name, future in futures.items():
            try:
                future.result()
            except self._library.KafkaException as error:
                if error.args[0].name() != "GROUP_ID_NOT_FOUND":
                    raise self._connection.failure(error, f"commit record {name}") from error


class KafkaCommitter(SinkCommitter):
    """Commits transactions of any writer of the sink, and aborts those of older attempts."""

    def __init__(self, servers: str, options: Mapping[str, str], id_prefix: str) -> None:
        self._servers, self._options, self._id_prefix = servers, options, id_prefix
        self._open: tuple[KafkaConnection, CommitRecord] | None = None

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        """Commits in the order of the numbers, so that the record never has a gap.

        Raises:
            JobRejected: the broker has aborted a transaction, after its time-out. Its rows are lost and named.
            EnvironmentFailure: the broker is away, or the outcome is not known yet; a repetition is safe.
        """
        transactions = sorted(
            (_check_committable(each, permit.job) for each in committables), key=lambda each: (each.id, each.number)
        )
        return sum(self._commit(each) for each in transactions)

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        """Aborts open transactions of older attempts. An id with a pending kept transaction is left alone.

        The record of an id with a committed kept transaction stays, since its commit may be repeated. A later
        transaction of this id is aborted all the same: it would hold back the consumers of the topic.
        """
        connection, record = self._connect()
        kept: dict[str, PreparedTransaction] = {}  #: by id, the newest
        for each in _own_transactions(keep):
            if each.id not in kept or kept[each.id].number < each.number:
                kept[each.id] = each
        old = record.ids_of_older_attempts(self._id_prefix, job, uid, token)
        done = [
            name
            for name in old
            if name not in kept or record.committed_number(name, kept[name].topic) >= kept[name].number
        ]
        if not done:
            return 0
        with ThreadPoolExecutor(min(_CLEANING_THREADS, len(done)), "kafka-clean") as threads:
            list(threads.map(lambda name: _abort_open_transaction(connection, name), done))
        record.delete([name for name in done if name not in kept])
        return len(done)

    def _connect(self) -> tuple[KafkaConnection, CommitRecord]:
        if self._open is None:
            connection = KafkaConnection(self._servers, self._options)
            self._open = connection, CommitRecord(connection)
        return self._open

    def _commit(self, transaction: PreparedTransaction) -> bool:
        """Whether the transaction was not committed before."""
        connection, record = self._connect()
        if record.committed_number(transaction.id, transaction.topic) >= transaction.number:
            return False
        code = _end_transaction(connection, transaction)
        if code == 0:
            return True
        if record.committed_number(transaction.id, transaction.topic) >= transaction.number:
            return False  # another holder of a permit was faster
        if code in _REFUSED:
            detail = f"Kafka at {self._servers}: commit of {transaction.id}: {_REFUSED[code]}"
            raise JobRejected("kafka-refused", "options", f"{detail}: check the rights of this user in `options`")
        if code not in _GONE:
            raise EnvironmentFailure(f"Kafka at {self._servers}: commit of {transaction.id}: error {code}")
        detail = (
            f"{transaction.rows} rows of checkpoint {transaction.checkpoint} for topic {transaction.topic!r} are lost: "
            f"the broker has aborted their transaction {transaction.id} ({_GONE[code]}), as it does after "
            "transaction_timeout_ms. Restore an older checkpoint to write the rows again, and raise "
            "transaction_timeout_ms (with transaction.max.timeout.ms of the brokers) above the longest outage"
        )
        raise JobRejected("transaction-lost", "transaction_timeout_ms", detail)


def check_topic_exists(connection: KafkaConnection, client: Any, topic: str) -> None:
    """Raises JobRejected if there is no such topic. Lists all topics: a request for one topic could create it."""
    topics = connection.list_topics(client, f"topic {topic!r}")
    if topic not in topics:
        detail = f"Kafka at {connection.servers} has no topic {topic!r}: create the topic, or correct its name"
        raise JobRejected("missing-topic", "topic", detail)


def _end_transaction(connection: KafkaConnection, transaction: PreparedTransaction) -> int:
    """The final error code of the commit; 0: committed. Raises EnvironmentFailure if the outcome is not known."""
    problem: object = "no coordinator"
    for _ in range(_COMMIT_TRIES):
        try:
            with connection.wire() as any_broker:
                code, host, port = any_broker.find_coordinator(transaction.id)
            if code == 0:
                with connection.wire((host, port)) as coordinator:
                    code = coordinator.end_transaction(
                        transaction.id, transaction.producer, transaction.epoch, commit=True
                    )
        except OSError as error:
            what = f"Kafka at {connection.servers}: commit of {transaction.id}: {error}"
            outage = error if error.errno else OSError(errno.ETIMEDOUT, str(error))
            raise EnvironmentFailure(what) from outage
        if code not in _MOVED and code != _IN_PROGRESS:
            return code
        problem = f"error {code}"
        threading.Event().wait(_PAUSE_S)
    raise EnvironmentFailure(f"Kafka at {connection.servers}: commit of {transaction.id}: {problem}")


def _abort_open_transaction(connection: KafkaConnection, transactional_id: str) -> None:
    """Initialises the id: the broker aborts its open transaction and fences its producers (KIP-98)."""
    producer = connection.producer({"transactional.id": transactional_id})
    call_again(connection, lambda: initialise(connection, producer), transactional_id)


def initialise(connection: KafkaConnection, producer: Any) -> None:
    """Initialises the transactional id of a producer. Raises KafkaException.

    The request for metadata is a connection to wait for. Without one, librdkafka asks for the coordinator too early and
    again after 500 ms.
    """
    producer.list_topics(timeout=connection.timeout_s)
    producer.init_transactions(connection.timeout_s)


def call_again(connection: KafkaConnection, call: Any, what: str) -> None:
    """Calls until the error of librdkafka is not marked as retriable, a few times at most."""
    library = import_library("confluent_kafka", "kafka")
    for left in reversed(range(5)):
        try:
            call()
        except library.KafkaException as error:
            if not (left and error.args[0].retriable()):
                raise connection.failure(error, what) from error
            threading.Event().wait(_PAUSE_S)
        else:
            return


def _own_transactions(committables: Sequence[Any]) -> list[PreparedTransaction]:
    """Without those of a sink of another kind, which may have written older checkpoints."""
    found = []
    for each in committables:
        with suppress(TypeError):
            found.append(PreparedTransaction(**each))
    return found


def _check_committable(committable: Any, job: str) -> PreparedTransaction:
    """Raises JobRejected unless the committable is a transaction of this job."""
    try:
        found = PreparedTransaction(**committable)
        own = _ID_PATTERN.fullmatch(found.id)
        numbers = (found.number, found.producer, found.epoch, found.rows, found.checkpoint)
        valid = own is not None and own["job"] == encode_id_part(job) and all(isinstance(each, int) for each in numbers)
    except TypeError:
        valid = False
    if not valid:
        detail = f"a checkpoint names a transaction that this sink has not written for job {job}: {committable!r}"
        raise JobRejected("bad-committable", "sink", detail)
    return found
