"""Transactions of Kafka that outlive their producer, so that a commit may follow a crash of the producer.

Flink commits such a transaction by a producer that takes over id and epoch of the former producer
(`FlinkKafkaInternalProducer.resumeTransaction`). librdkafka has no such call; kafka-python sends the request itself:
EndTxn with transactional id, producer id and epoch.

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

import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from runtime.clock import Deadline
from runtime.connectors.kafka.connection import KafkaConnection
from runtime.connectors.names import encode_name
from runtime.core.job.ids import Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import EnvironmentFailure, JobRejected, TargetAway
from runtime.libraries import import_library
from runtime.ports import SinkCommitter

_ID_PATTERN: Final = re.compile(
    r"(?P<prefix>[\w.]+)-(?P<job>[\w.=]+)-(?P<uid>[\w.=]+)-(?P<token>\d+)-\d+-[0-9a-f]+-\d+", re.ASCII
)
_COORDINATOR_TRIES: Final = 60
_PAUSE_S: Final = 0.25
_CLEANING_THREADS: Final = 8

_GROUP_KEY: Final = 0  #: key types of FindCoordinator
_TRANSACTION_KEY: Final = 1

_NO_TOPIC: Final = 3  #: UNKNOWN_TOPIC_OR_PARTITION
_NO_LEADER: Final = 5  #: LEADER_NOT_AVAILABLE: the topic exists
_NO_GROUP: Final = 69  #: GROUP_ID_NOT_FOUND
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


class KafkaCommitRecord:
    """The groups that record the commits of transactional ids, as offsets of partition 0 of a topic. Thread-safe.

    kafka-python sends its requests. An admin client of librdkafka that asks during an outage can end the process.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection

    def committed_number(self, transactional_id: str, topic: str) -> int:
        """The number of the last committed transaction of the id, whose messages go to `topic`; 0: none.

        Open transactions do not count and are not waited for.
        """
        messages = import_library("kafka.protocol.consumer", "kafka")
        request = messages.OffsetFetchRequest(transactional_id, [(topic, [0])], version=2)
        what = f"commit record {transactional_id}"

        def error_code(answer: Any) -> int:
            return next((each.partitions[0].error_code for each in answer.topics), 0) or answer.error_code

        code, answer = _ask_coordinator(self._connection, what, transactional_id, _GROUP_KEY, request, error_code)
        if code:
            raise self._connection.refusal(code, what)
        return int(max((0, *(each.partitions[0].committed_offset for each in answer.topics))))

    def check_topic_exists(self, topic: str) -> None:
        what = f"topic {topic!r}"
        (answer,) = self._connection.metadata(what, [topic]).topics
        if answer.error_code == _NO_TOPIC:
            raise missing_topic(self._connection, topic)
        if answer.error_code and answer.error_code != _NO_LEADER:
            raise self._connection.refusal(answer.error_code, what)

    def ids_of_older_attempts(self, prefix: str, job: str, uid: str, token: Token) -> list[str]:
        messages = import_library("kafka.protocol.admin", "kafka")
        what, groups = "list of consumer groups", set[str]()
        for broker in self._connection.metadata(what).brokers:
            answer = self._connection.ask(what, messages.ListGroupsRequest(version=0), _server(broker))
            if answer.error_code:
                raise self._connection.refusal(answer.error_code, what)
            groups.update(each.group_id for each in answer.groups)
        matches = [(name, _ID_PATTERN.fullmatch(name)) for name in sorted(groups)]
        owner = (prefix, encode_id_part(job), encode_id_part(uid))
        sink_ids = [(name, match) for name, match in matches if match and match.group("prefix", "job", "uid") == owner]
        return [name for name, match in sink_ids if int(match["token"]) < token]

    def delete(self, transactional_ids: Sequence[str]) -> None:
        messages = import_library("kafka.protocol.admin", "kafka")
        for name in transactional_ids:
            what, request = f"commit record {name}", messages.DeleteGroupsRequest([name], version=0)
            code, _ = _ask_coordinator(
                self._connection, what, name, _GROUP_KEY, request, lambda answer: answer.results[0].error_code
            )
            if code and code != _NO_GROUP:
                raise self._connection.refusal(code, what)


class KafkaCommitter(SinkCommitter):
    """Commits transactions of any writer of the sink, and aborts those of older attempts."""

    def __init__(self, servers: str, options: Mapping[str, str], id_prefix: str) -> None:
        self._servers, self._options, self._id_prefix = servers, options, id_prefix
        self._open: tuple[KafkaConnection, KafkaCommitRecord] | None = None

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        """Commits in the order of the checkpoints, so that the record never has a gap.

        Raises:
            JobRejected: the broker has aborted a transaction, after its time-out. Its rows are lost and named.
            EnvironmentFailure: the broker is away, or the outcome is not known yet; a repetition is safe.
        """
        transactions = sorted(
            (_check_committable(each, permit.job) for each in committables),
            key=lambda each: (each.checkpoint, each.id, each.number),
        )
        return sum(self._commit(each, transactions) for each in transactions)

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        """Aborts open transactions of older attempts. An id with a pending kept transaction is left alone.

        The record of an id with a committed kept transaction stays, since its commit may be repeated. A later
        transaction of this id is aborted all the same: it would hold back the consumers of the topic.
        """
        connection, record = self._connect()
        by_id: dict[str, PreparedTransaction] = {}  #: by id, the newest
        for each in _own_transactions(keep):
            if each.id not in by_id or by_id[each.id].number < each.number:
                by_id[each.id] = each
        old = record.ids_of_older_attempts(self._id_prefix, job, uid, token)
        names = [
            name
            for name in old
            if name not in by_id or record.committed_number(name, by_id[name].topic) >= by_id[name].number
        ]
        if not names:
            return 0
        with ThreadPoolExecutor(min(_CLEANING_THREADS, len(names)), "kafka-clean") as threads:
            list(threads.map(lambda name: _abort_open_transaction(connection, name), names))
        record.delete([name for name in names if name not in by_id])
        return len(names)

    def _connect(self) -> tuple[KafkaConnection, KafkaCommitRecord]:
        if self._open is None:
            connection = KafkaConnection(self._servers, self._options)
            self._open = connection, KafkaCommitRecord(connection)
        return self._open

    def _commit(self, transaction: PreparedTransaction, transactions: Sequence[PreparedTransaction]) -> bool:
        """Whether the transaction was not committed before. It is one of `transactions`."""
        connection, record = self._connect()
        if record.committed_number(transaction.id, transaction.topic) >= transaction.number:
            return False
        code = _end_transaction(connection, transaction)
        if code == 0:
            return True
        if record.committed_number(transaction.id, transaction.topic) >= transaction.number:
            return False  # another holder of a permit was faster
        if code not in _GONE:
            raise connection.refusal(code, f"commit of {transaction.id}")
        siblings = [each for each in transactions if each.checkpoint == transaction.checkpoint]
        committed = sum(record.committed_number(each.id, each.topic) >= each.number for each in siblings)
        raise _loss(transaction, _GONE[code], committed, len(siblings))


def _loss(lost: PreparedTransaction, problem: str, committed: int, count: int) -> JobRejected:
    """The error of a transaction that the broker has aborted, with the way that writes no row twice.

    Args:
        committed: how many of the checkpoint's `count` transactions are committed.
    """
    again = "Restore the preceding checkpoint"
    if committed:
        again = f"{again} with another topic, which then gets each row since that checkpoint once: in this topic the "
        again += "rows of the committed ones would be doubled"
    else:
        again += ", which writes each row of this one again, once"
    detail = (
        f"{lost.rows} rows of checkpoint {lost.checkpoint} for topic {lost.topic!r} are lost: the broker has aborted "
        f"their transaction {lost.id} ({problem}), as it does after transaction_timeout_ms. {committed} of {count} "
        f"transactions of this checkpoint are committed. {again}. Then raise transaction_timeout_ms (with "
        "transaction.max.timeout.ms of the brokers) above the longest outage, or choose commit='staged'"
    )
    return JobRejected("transaction-lost", "transaction_timeout_ms", detail)


def check_topic_exists(connection: KafkaConnection, client: Any, topic: str) -> None:
    """Raises JobRejected if there is no such topic. Lists all topics: a request for one topic could create it."""
    if topic not in connection.list_topics(client, f"topic {topic!r}"):
        raise missing_topic(connection, topic)


def missing_topic(connection: KafkaConnection, topic: str) -> JobRejected:
    detail = f"Kafka at {connection.servers} has no topic {topic!r}: create the topic, or correct its name"
    return JobRejected("missing-topic", "topic", detail)


def _end_transaction(connection: KafkaConnection, transaction: PreparedTransaction) -> int:
    """The final error code of the commit; 0: committed. Raises EnvironmentFailure if the outcome is not known.

    EndTxn 5 is for producers of another protocol of transactions, which raises their epoch (KIP-890).
    """
    name = transaction.id
    message = import_library("kafka.protocol.producer", "kafka").EndTxnRequest
    request = message(name, transaction.producer, transaction.epoch, True, version=1)
    return _ask_coordinator(connection, f"commit of {name}", name, _TRANSACTION_KEY, request)[0]


def _ask_coordinator(
    connection: KafkaConnection,
    what: str,
    key: str,
    key_type: int,
    request: Any,
    error_code: Callable[[Any], int] = attrgetter("error_code"),
) -> tuple[int, Any]:
    """The answer to `request` of the coordinator of `key`, behind its error code; 0: none.

    Repeated while the coordinator moves.

    Raises:
        TargetAway: no broker answers, or there is no coordinator for some seconds.
    """
    message = import_library("kafka.protocol.metadata", "kafka").FindCoordinatorRequest
    code = 0
    for _ in range(_COORDINATOR_TRIES):
        answer = connection.ask(what, message(key, key_type, version=1))
        code = answer.error_code
        if code == 0:
            answer = connection.ask(what, request, _server(answer))
            code = error_code(answer)
        if code not in _MOVED and code != _IN_PROGRESS:
            return code, answer
        threading.Event().wait(_PAUSE_S)
    raise connection.refusal(code, what)


def _server(broker: Any) -> str:
    return f"[{broker.host}]:{broker.port}"  # in brackets for the sake of IPv6


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
    """Calls until the error of librdkafka is permanent, for twice `timeout_s` of the connection at most."""
    deadline = Deadline(2 * connection.timeout_s)
    while True:
        try:
            with connection.call(what):
                call()
        except EnvironmentFailure as error:
            cause = error.__cause__
            if isinstance(cause, SystemError) or cause is None:
                raise
            if deadline.has_passed or not (isinstance(error, TargetAway) or cause.args[0].retriable()):
                raise
            threading.Event().wait(_PAUSE_S)
        else:
            return


def _own_transactions(committables: Sequence[Any]) -> list[PreparedTransaction]:
    """Without those of a sink of another kind, which may have written older checkpoints."""
    transactions = []
    for each in committables:
        with suppress(TypeError):
            transactions.append(PreparedTransaction(**each))
    return transactions


def _check_committable(committable: Any, job: str) -> PreparedTransaction:
    """Raises JobRejected unless the committable is a transaction of this job."""
    try:
        entry = PreparedTransaction(**committable)
        match = _ID_PATTERN.fullmatch(entry.id)
        numbers = (entry.number, entry.producer, entry.epoch, entry.rows, entry.checkpoint)
        valid = (
            match is not None and match["job"] == encode_id_part(job) and all(isinstance(each, int) for each in numbers)
        )
    except TypeError:
        valid = False
    if not valid:
        detail = f"a checkpoint names a transaction that this sink has not written for job {job}: {committable!r}"
        raise JobRejected("bad-committable", "sink", detail)
    return entry
