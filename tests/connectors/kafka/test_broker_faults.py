"""Faults of the broker of the tests that the tests work around, shown by librdkafka alone.

A failure here means that the broker has been mended: remove the workaround.
"""

from confluent_kafka import Producer

from tests.kafka import QUIET, Broker


def test_committed_transactions_in_a_chain_of_partitions_stay_unresolved_until_another_ends(
    small_broker: Broker,
) -> None:
    broker = small_broker
    topic = broker.topic(2)
    producers = []
    for name, partitions in (("a", [0]), ("b", [0, 1]), ("c", [1])):
        producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": f"{topic}-{name}", **QUIET})
        producer.list_topics(timeout=30)
        producer.init_transactions(30)
        producer.begin_transaction()
        for partition in partitions:
            producer.produce(topic, b"row", partition=partition)
        assert producer.flush(30) == 0
        producers.append(producer)
    for each in producers:
        each.commit_transaction(30)
    assert broker.end(topic, 1) == broker.end(topic, 1, stable=False)
    assert broker.end(topic, 0) < broker.end(topic, 0, stable=False), "all transactions of partition 0 are committed"
    broker.settle(topic, 2)
    assert broker.end(topic, 0) == broker.end(topic, 0, stable=False)
    assert broker.committed_values(topic, 2) == [b"row"] * 4
