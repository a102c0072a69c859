"""Requests of a `KafkaCommitRecord` during outages of a broker: `python -m tests.connectors.kafka.outages ROUNDS`.

It is a process of its own, since a fault inside librdkafka ends the process. It prints the numbers that it has read.
"""

import sys
import time

from runtime.connectors.kafka.connection import KafkaConnection
from runtime.connectors.kafka.transactions import KafkaCommitRecord
from runtime.errors import EnvironmentFailure, is_outage
from tests.kafka import free_port, running_broker
from tests.waiting import until

REQUESTS = 6  #: during an outage
SETTLED_S = 4.0  #: late answers of librdkafka come within this time


def live_through(rounds: int) -> None:
    port, topic = free_port(), "numbers"
    record = None
    for _ in range(rounds):
        with running_broker(port=port) as broker:
            broker.topic(1, topic)
            record = record or KafkaCommitRecord(KafkaConnection(broker.servers, {"socket.timeout.ms": "1000"}))
            until(lambda record=record: _number(record, topic) == 0, 30.0)  # type: ignore[misc]
            time.sleep(SETTLED_S)
        answers = [_number(record, topic) for _ in range(REQUESTS)]
        assert answers == [None] * REQUESTS
    sys.stdout.write("lived\n")


def _number(record: KafkaCommitRecord, topic: str) -> int | None:
    """None: an outage."""
    try:
        return record.committed_number("nobody", topic)
    except EnvironmentFailure as error:
        if not is_outage(error):
            raise
        return None


if __name__ == "__main__":
    live_through(int(sys.argv[1]))
