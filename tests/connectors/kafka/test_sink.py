"""The Kafka sink on a real broker: two phases, pools, clean-up, kills, lost transactions, and errors by name."""

import gc
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.kafka.connection import KafkaConnection
from runtime.connectors.kafka.formats import KafkaBytes, KafkaJson, KafkaText
from runtime.connectors.kafka.sink import KafkaSink
from runtime.connectors.kafka.transactions import KafkaCommitRecord
from runtime.core.job.ids import Token
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, TargetAway, is_outage
from runtime.ports import SinkWriter
from tests.connectors.two_phases import commit, rows, writer
from tests.kafka import Broker
from tests.kafka_log import read_log
from tests.kafka_proxy import END_TXN, Proxy
from tests.waiting import until

UNIQUE_JOB = iter(range(1_000_000))


@pytest.fixture
def job() -> str:
    """A name that no other test of this broker has."""
    return f"job-{os.getpid()}-{next(UNIQUE_JOB)}"


def sink(broker: Broker, topic: str, **arguments: Any) -> KafkaSink:
    sink = KafkaSink(broker.servers, topic, arguments.pop("format", KafkaText("n")), **arguments)
    sink.check()
    return sink


def visible(broker: Broker, topic: str, partitions: int = 1) -> list[int]:
    """What a consumer of committed messages gets; aborted rows are left out by the markers of the log."""
    return sorted(int(value) for value in broker.committed_values(topic, partitions))


# ---------------------------------------------------------------- two phases


def test_rows_are_hidden_until_they_are_committed_and_a_commit_may_be_repeated(broker: Broker, job: str) -> None:
    """S1-06, S1-38."""
    topic = broker.topic(3)
    of = sink(broker, topic, key="n")
    first_writer, second_writer = writer(of, job=job), writer(of, index=1, job=job)
    first_writer.write(rows(1, 2))
    second_writer.write(rows(3))
    assert broker.visible_values(topic, 3) == []
    committables = [*first_writer.prepare(5), *second_writer.prepare(5)]
    assert [each["rows"] for each in committables] == [2, 1]
    assert broker.visible_values(topic, 3) == []
    assert json.loads(json.dumps(committables)) == committables
    assert commit(of, *committables, checkpoint=5, job=job) == 2
    assert sorted(broker.visible_values(topic, 3)) == [b"1", b"2", b"3"]
    for token in (1, 2):
        assert commit(of, *committables, token=token, checkpoint=5, job=job) == 0
    assert visible(broker, topic, 3) == [1, 2, 3]
    first_writer.close()
    second_writer.close()


def test_a_checkpoint_without_rows_has_no_transaction(broker: Broker, job: str) -> None:
    topic = broker.topic()
    sink_writer = writer(sink(broker, topic), job=job)
    assert sink_writer.prepare(1) == ()
    sink_writer.write(rows())
    assert sink_writer.prepare(2) == ()
    sink_writer.close()
    assert broker.end(topic, stable=False) == 0


def test_transactions_of_several_checkpoints_may_be_pending_and_ids_are_used_again(broker: Broker, job: str) -> None:
    """S1-06, S1-25: a commit of an id that has been used again since still counts as committed."""
    topic = broker.topic()
    of = sink(broker, topic)
    sink_writer, committer = writer(of, job=job), of.committer()
    pending: list[Any] = []
    for checkpoint in (1, 2, 3):
        sink_writer.write(rows(checkpoint))
        pending += sink_writer.prepare(checkpoint)
    assert len({each["id"] for each in pending}) == 3
    assert visible(broker, topic) == []
    assert commit(committer, *pending, checkpoint=3, job=job) == 3
    used, last = {each["id"] for each in pending}, pending
    for checkpoint in (4, 5, 6, 7):
        sink_writer.write(rows(checkpoint))
        last = list(sink_writer.prepare(checkpoint))
        used |= {each["id"] for each in last}
        assert commit(committer, *pending, checkpoint=checkpoint, job=job) == 0, "it commits no later transaction"
        assert broker.visible_values(topic) == [str(n).encode() for n in range(1, checkpoint)]
        assert commit(committer, *pending, *last, checkpoint=checkpoint, job=job) == 1
    assert len(used) <= 4, "the pool grows with the pending transactions only"
    assert visible(broker, topic) == [1, 2, 3, 4, 5, 6, 7]
    sink_writer.close()


KILLED = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
from tests.connectors.kafka.test_sink import *
broker, topic, job, phase = Broker(sys.argv[2]), *sys.argv[3:]
found = writer(sink(broker, topic), job=job)
found.write(rows(1, 2, 3))
if phase == "prepared":
    print(json.dumps(found.prepare(1)), flush=True)
elif phase == "written":
    found._current.rows.flush()
elif phase == "committed":
    found_committables = found.prepare(1)
    commit(sink(broker, topic), *found_committables, job=job)
    print(json.dumps(found_committables), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_and_kill(broker: Broker, topic: str, job: str, phase: str) -> list[Any]:
    root = str(Path(__file__).parents[3])
    command = [sys.executable, "-c", KILLED, root, broker.servers, topic, job, phase]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return list(json.loads(ended.stdout or "[]"))


def test_a_transaction_outlives_the_process_of_its_producer(broker: Broker, job: str) -> None:
    """S1-06, S1-38: killed after prepare, and again after commit: another process commits, each row once."""
    topic = broker.topic()
    committables = run_and_kill(broker, topic, job, "prepared")
    assert broker.visible_values(topic) == []
    of = sink(broker, topic)
    assert commit(of, *committables, token=2, job=job) == 1
    assert visible(broker, topic) == [1, 2, 3]
    transactions = run_and_kill(broker, topic, f"{job}-2", "committed")
    assert commit(of, *transactions, token=2, job=f"{job}-2") == 0
    assert visible(broker, topic) == [1, 1, 2, 2, 3, 3]


def test_rows_of_a_killed_attempt_without_a_checkpoint_are_aborted_by_the_next(broker: Broker, job: str) -> None:
    """S1-39: also those that the broker has already acknowledged; consumers go on."""
    topic = broker.topic()
    run_and_kill(broker, topic, job, "written")
    assert len(read_log(broker.address, topic, 0)) == 3
    of = sink(broker, topic)
    assert of.committer().clean(job, "out", Token(2), []) >= 1
    sink_writer = writer(of, token=2, job=job)
    sink_writer.write(rows(7))
    assert commit(of, *sink_writer.prepare(1), token=2, job=job) == 1
    assert visible(broker, topic) == [7]
    assert of.committer().clean(job, "out", Token(2), []) == 0
    sink_writer.close()


def test_a_clean_up_keeps_retained_transactions_and_those_of_others(broker: Broker, job: str) -> None:
    """S1-54: only leftovers of this job, this sink and older tokens."""
    topic = broker.topic(4)
    of = sink(broker, topic, key="n")
    prepared: dict[str, tuple[SinkWriter, Any]] = {}
    places: dict[str, dict[str, Any]] = {
        "kept": {"index": 0}, "dropped": {"index": 1}, "newer": {"token": 9}, "other sink": {"uid": "other"}
    }  # fmt: skip
    for number, (name, place) in enumerate(places.items()):
        sink_writer = writer(of, **place, job=job)
        sink_writer.write(rows(number))
        prepared[name] = sink_writer, sink_writer.prepare(1)[0]
    stranger = writer(of, job=f"{job}x")
    stranger.write(rows(100))
    foreign = stranger.prepare(1)
    assert of.committer().clean(job, "out", Token(5), [prepared["kept"][1], {"kind": "another sink"}]) >= 1
    for name in ("kept", "newer", "other sink"):
        assert commit(of, prepared[name][1], token=9, job=job) == 1, name
    assert commit(of, *foreign, job=f"{job}x") == 1
    with pytest.raises((EnvironmentFailure, JobRejected)):
        commit(of, prepared["dropped"][1], token=9, job=job)
    assert visible(broker, topic, 4) == [0, 2, 3, 100]
    for sink_writer, _ in prepared.values():
        sink_writer.close()


def test_a_later_transaction_of_a_kept_id_is_aborted(broker: Broker, job: str) -> None:
    """The id of a retained, committed transaction was used again; consumers must not wait for its leftover."""
    topic = broker.topic()
    of = sink(broker, topic)
    sink_writer, retained = writer(of, job=job), list[Any]()
    for checkpoint in range(1, 8):
        sink_writer.write(rows(checkpoint))
        committables = sink_writer.prepare(checkpoint)
        used = {each["id"] for each in retained}
        retained += committables
        if committables[0]["id"] in used:
            break
        assert commit(of, *committables, checkpoint=checkpoint, job=job) == 1
    assert committables[0]["id"] in used, "an id was used again"
    *transactions, leftover = retained
    assert of.committer().clean(job, "out", Token(2), transactions) >= 1
    assert broker.end(topic) == broker.end(topic, stable=False), "no transaction is open"
    assert commit(of, *transactions, token=2, job=job) == 0, "the record of the commits is kept"
    assert visible(broker, topic) == list(range(1, leftover["checkpoint"]))
    sink_writer.close()


@pytest.mark.slow
def test_a_zombie_of_an_older_attempt_writes_nothing_that_counts(broker: Broker, job: str) -> None:
    """S1-11: it goes on after the clean-up of the next attempt; its prepare fails or is never committed."""
    topic = broker.topic()
    of = sink(broker, topic, options={"socket.timeout.ms": "2000"})
    zombie = writer(of, job=job)
    zombie.write(rows(1))
    of.committer().clean(job, "out", Token(2), [])
    sink_writer = writer(of, token=2, job=job)
    sink_writer.write(rows(2))
    committables = sink_writer.prepare(1)
    zombie.write(rows(3))
    with pytest.raises((EnvironmentFailure, JobRejected)):
        zombie.prepare(1)
    assert commit(of, *committables, token=2, job=job) == 1
    until(lambda: 2 in visible(broker, topic), 30.0)
    assert visible(broker, topic) == [2]
    zombie.close()
    sink_writer.close()


@pytest.mark.slow
def test_two_installations_with_equal_jobs_and_tokens_share_a_cluster(broker: Broker, job: str) -> None:
    """S1-54: with prefixes of their own, neither takes the other's commits for its own, nor aborts its rows."""
    topic = broker.topic()
    first_sink, second_sink = (sink(broker, topic, id_prefix=prefix) for prefix in ("one", "two"))
    for number, of in enumerate([first_sink, second_sink, first_sink]):
        sink_writer = writer(of, job=job)
        sink_writer.write(rows(number))
        committables = sink_writer.prepare(1)
        other = second_sink if of is first_sink else first_sink
        other.committer().clean(job, "out", Token(9), [])
        assert commit(of, *committables, job=job) == 1
        sink_writer.close()
    assert visible(broker, topic) == [0, 1, 2]


# ---------------------------------------------------------------- outcomes of a commit


@pytest.fixture
def prepared(proxy: Proxy, job: str) -> Iterator[tuple[KafkaSink, str, Any]]:
    """A sink, its topic, and a prepared transaction of two rows at checkpoint 4."""
    topic = proxy.broker.topic()
    of = sink(proxy.broker, topic)
    sink_writer = writer(of, job=job)
    sink_writer.write(rows(1, 2))
    (committable,) = sink_writer.prepare(4)
    yield of, topic, committable
    proxy.rule = lambda api, body: None
    sink_writer.close()


def answering(*codes: int) -> Any:
    """Answers EndTxn with `codes` in turn, then leaves it to the broker."""
    left = list(codes)
    return lambda api, body: struct.pack(">ih", 0, left.pop(0)) if api == END_TXN and left else None


LOST = {47: "INVALID_PRODUCER_EPOCH", 48: "INVALID_TXN_STATE", 49: "INVALID_PRODUCER_ID_MAPPING", 90: "PRODUCER_FENCED"}


def test_a_transaction_that_the_broker_has_aborted_is_named_with_its_rows(
    proxy: Proxy, prepared: Any, job: str
) -> None:
    """Never dropped in silence; `transaction_timeout_ms` is the remedy."""
    of, topic, committable = prepared
    for code, name in LOST.items():
        proxy.rule = answering(code)
        with pytest.raises(JobRejected, match=rf"2 rows of checkpoint 4 for topic '{topic}' are lost.*{name}") as error:
            commit(of, committable, checkpoint=4, job=job)
        assert (error.value.code, error.value.field) == ("transaction-lost", "transaction_timeout_ms")


def test_a_commit_in_progress_and_a_moved_coordinator_are_waited_for(proxy: Proxy, prepared: Any, job: str) -> None:
    of, topic, committable = prepared
    proxy.rule = answering(51, 16)
    assert commit(of, committable, checkpoint=4, job=job) == 1
    assert visible(proxy.broker, topic) == [1, 2]


def test_a_commit_whose_answer_is_lost_is_known_as_committed(proxy: Proxy, prepared: Any, job: str) -> None:
    """S1-03: the outcome is unknown to the first committer, and read by the second one."""
    of, topic, committable = prepared
    proxy.rule = lambda api, body: b"" if api == END_TXN else None
    with pytest.raises(EnvironmentFailure, match="socket disconnected") as error:
        commit(of, committable, checkpoint=4, job=job)
    assert is_outage(error.value)
    proxy.rule = answering(90)
    assert commit(of, committable, checkpoint=4, job=job) == 0
    assert visible(proxy.broker, topic) == [1, 2]


def test_a_commit_without_rights_and_a_foreign_committable_are_refused(proxy: Proxy, prepared: Any, job: str) -> None:
    of, _, committable = prepared
    proxy.rule = answering(53)
    with pytest.raises(JobRejected, match=r"TRANSACTIONAL_ID_AUTHORIZATION_FAILED.*check the credentials"):
        commit(of, committable, checkpoint=4, job=job)
    with pytest.raises(JobRejected, match="has not written for job"):
        commit(of, committable, job=f"{job}x")
    with pytest.raises(JobRejected, match="has not written for job"):
        commit(of, {"pending": "x"}, job=job)


def test_a_moving_coordinator_or_leader_is_an_outage() -> None:
    """Codes of the protocol, such as NOT_COORDINATOR, and of librdkafka."""
    connection = KafkaConnection("127.0.0.1:1", {})
    for code in (5, 6, 7, 14, 15, 16, 19, 20, 51, 56, 74, 75, -180, -185, -187, -195):
        assert is_outage(connection.refusal(code, "a request")), code
    for code in (47, 90, -144, 87):
        assert not is_outage(connection.refusal(code, "a request")), code


def test_the_record_of_commits_is_part_of_the_transaction(broker: Broker, job: str) -> None:
    topic = broker.topic()
    of = sink(broker, topic)
    sink_writer = writer(of, job=job)
    sink_writer.write(rows(1))
    (committable,) = sink_writer.prepare(1)
    record = KafkaCommitRecord(KafkaConnection(broker.servers, {}))
    assert record.committed_number(committable["id"], topic) == 0
    assert commit(of, committable, job=job) == 1
    until(lambda: record.committed_number(committable["id"], topic) == 1, 30.0)
    sink_writer.close()


def test_a_pending_transaction_is_committed_after_the_sink_has_got_another_topic(broker: Broker, job: str) -> None:
    """S1-38: a savepoint that is restored with another topic; its rows belong to the former one."""
    former, topic = broker.topic(), broker.topic()
    sink_writer = writer(sink(broker, former), job=job)
    sink_writer.write(rows(1))
    (committable,) = sink_writer.prepare(1)
    sink_writer.close()
    of = sink(broker, topic)
    assert [commit(of, committable, job=job) for _ in range(2)] == [1, 0]
    assert visible(broker, former) == [1]


def test_a_time_out_above_that_of_the_broker_is_named(proxy: Proxy, job: str) -> None:
    topic = proxy.broker.topic()
    initialise, too_long = 22, 50  # InitProducerId -> INVALID_TRANSACTION_TIMEOUT
    answer = struct.pack(">ihqh", 0, too_long, -1, -1)
    proxy.rule = lambda api, body: (b"\0" + answer + b"\0") if api == initialise else None
    with pytest.raises(JobRejected, match=r"transaction_timeout_ms: .*raise transaction\.max\.timeout\.ms"):
        writer(sink(proxy.broker, topic), job=job)
    proxy.rule = lambda api, body: None


@pytest.mark.timeout(30)
def test_a_group_that_cannot_be_created_is_an_outage_within_its_time(proxy: Proxy, job: str) -> None:
    """A synchronous commit of librdkafka waits without limit for a coordinator that is away."""
    find_coordinator = 10  # FindCoordinator
    proxy.rule = lambda api, body: b"" if api == find_coordinator else None
    away = sink(proxy.broker, proxy.broker.topic(), options={"socket.timeout.ms": "1000"})
    with pytest.raises(TargetAway):
        writer(away, job=job)
    gc.collect()  # it took 45 s to drop the consumer, in the thread that collected


# ---------------------------------------------------------------- messages


def test_keys_choose_partitions_and_values_have_all_columns(broker: Broker, job: str) -> None:
    topic = broker.topic(4)
    of = sink(broker, topic, format=KafkaJson(), key="n", commit="immediate")
    sink_writer = writer(of, job=job)
    sink_writer.write(pa.RecordBatch.from_pydict({"n": [1, 2, None, 1], "text": ["a", "b", "c", None]}))
    assert sink_writer.prepare(1) == ()
    values = [json.loads(value) for value in broker.visible_values(topic, 4)]
    assert sorted(values, key=str) == sorted(
        [{"n": 1, "text": "a"}, {"n": 2, "text": "b"}, {"n": None, "text": "c"}, {"n": 1, "text": None}], key=str
    )
    assert of.guarantee == "at-least-once"
    assert commit(of, job=job) == 0
    sink_writer.close()


def test_more_rows_than_the_queue_of_the_producer_holds_are_all_written(broker: Broker, job: str) -> None:
    topic = broker.topic()
    sink_writer = writer(sink(broker, topic, options={"queue.buffering.max.messages": "50"}), job=job)
    sink_writer.write(rows(*range(1_000)))
    (committable,) = sink_writer.prepare(1)
    assert committable["rows"] == 1_000
    assert commit(sink(broker, topic), committable, job=job) == 1
    assert visible(broker, topic) == list(range(1_000))
    sink_writer.close()


@pytest.mark.parametrize("how", ["transaction", "immediate"])
def test_bad_input_is_named(how: str, broker: Broker, job: str) -> None:
    topic = broker.topic()
    sink_writer = writer(sink(broker, topic, format=KafkaBytes("n"), commit=how), job=job)
    with pytest.raises(DataRejected, match=rf"'{topic}', a message of 2,000,000 bytes.*raise max\.message\.bytes"):
        sink_writer.write(pa.RecordBatch.from_pydict({"n": [b"x" * 2_000_000]}))
    sink_writer.close()
    sink_writer = writer(sink(broker, topic, key="k", commit=how), index=1, job=job)
    with pytest.raises(JobRejected, match=r"key: the rows have no column 'k'; they have n"):
        sink_writer.write(rows(1))
    sink_writer.close()
    with pytest.raises(JobRejected, match=r"topic: .* has no topic 'never-made': create the topic"):
        writer(sink(broker, "never-made", commit=how), index=2, job=job)
    absent = KafkaSink("127.0.0.1:1", "t", KafkaText(), commit=how, options={"socket.timeout.ms": "500"})  # type: ignore[arg-type]
    with pytest.raises(EnvironmentFailure, match=r"Kafka at 127\.0\.0\.1:1") as outage:
        writer(absent, job=job)
    assert is_outage(outage.value)


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"topic": ""}, "topic: '' is no name"),
    ({"commit": "later"}, "commit: must be"),
    ({"id_prefix": "a-b"}, "id_prefix: must be letters"),
    ({"transaction_timeout_ms": 1_000}, "transaction_timeout_ms: must be at least"),
    (
        {"options": {"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER"}},
        r"options\.sasl\.mechanism: transactions log in by PLAIN.*not OAUTHBEARER",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_bad_settings_are_named(change: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"servers": "h:1", "topic": "t", "format": KafkaText()} | change
    with pytest.raises(JobRejected, match=message):
        KafkaSink(**settings).check()
