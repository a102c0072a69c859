"""The contract of `ports.Exchange`, over the in-memory twin, Flight, and streams within a host."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from runtime.core.job.ids import ChannelId, CheckpointId, Token
from runtime.core.job.messages import (
    Barrier,
    CancelBarrier,
    CheckpointKind,
    EndOfData,
    EndOfPartition,
    Idle,
    Message,
    Records,
    TerminationMarker,
    Watermark,
)
from runtime.core.subtask.credits import Credits
from runtime.errors import ProtocolViolation
from tests.contracts.channels import (
    CHANNEL,
    NEIGHBOUR,
    PATIENCE_S,
    SECRET,
    TOKEN,
    FlightNetwork,
    LocalNetwork,
    MemoryNetwork,
    Network,
    Pair,
    Recorder,
    numbers,
    transferred,
)


@pytest.fixture(params=[MemoryNetwork, FlightNetwork, LocalNetwork], ids=["memory", "flight", "local"])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    network: Network = request.param()
    yield network
    network.close()


# ---------------------------------------------------------------- order


def test_under_load_in_both_directions_every_channel_keeps_its_order_and_loses_nothing(network: Network) -> None:
    """S3-45, S4-17."""
    pair = Pair(network)
    channels = [ChannelId(edge, source, 1 - source) for edge in range(3) for source in (0, 1)]
    script: list[Message] = []
    for step in range(300):
        script += [numbers(step * 5, 5), Watermark(step), numbers(step, 1)]
        if step % 50 == 0:
            script.append(Barrier(CheckpointId(step), CheckpointKind.CHECKPOINT, step))
    script += [EndOfData(drain=True), EndOfPartition()]

    def send_all(channel: ChannelId) -> None:
        for message in script:
            pair.slots[channel.source].send(channel, channel.target, message)

    senders = [threading.Thread(target=send_all, args=(channel,)) for channel in channels]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    for channel in channels:
        assert pair.heard[channel.target].wait_for(channel, len(script)) == script
    assert not pair.losses


def test_control_messages_keep_their_place_before_between_and_after_batches(network: Network) -> None:
    """S3-45."""
    pair = Pair(network)
    script: list[Message] = [
        Watermark(-5),
        Barrier(CheckpointId(1), CheckpointKind.CHECKPOINT, 1_700_000_000_000),
        numbers(0, 3),
        Idle(),
        TerminationMarker(3, 2),
        Barrier(CheckpointId(2), CheckpointKind.SAVEPOINT, 1_700_000_000_001),
        numbers(3, 3),
        CancelBarrier(CheckpointId(3)),
        EndOfData(drain=False),
        EndOfData(drain=True, job_drains=True),
        Barrier(CheckpointId(4), CheckpointKind.DRAIN, 1_700_000_000_002),
        EndOfPartition(),
    ]
    pair.send(*script)
    assert pair.received(len(script)) == script
    assert not pair.losses


def test_the_numbers_of_rows_arrive_with_them(network: Network) -> None:
    """S4-45."""
    pair = Pair(network)
    sent = [replace(numbers(0, 2), split="topic/ä", end=2**40), replace(numbers(2, 1), end=-3), numbers(3, 1)]
    pair.send(*sent)
    received = [each for each in pair.received(3) if isinstance(each, Records)]
    assert [(each.split, each.end) for each in received] == [("topic/ä", 2**40), ("", -3), ("", 0)]


def test_a_channel_that_never_carries_records_carries_control(network: Network) -> None:
    pair = Pair(network)
    pair.send(Watermark(1), EndOfData(drain=True), EndOfPartition())
    assert pair.received(3) == [Watermark(1), EndOfData(drain=True), EndOfPartition()]
    assert not pair.losses


# ---------------------------------------------------------------- credits


def test_credit_comes_back_to_the_sender_of_that_channel_in_full(network: Network) -> None:
    pair = Pair(network)
    pair.heard[1].on_arrival = lambda channel, message: pair.slots[1].grant(
        channel, message.nbytes if isinstance(message, Records) else 0
    )
    sent = [numbers(0, rows) for rows in range(1, 200)]
    pair.send(*sent)
    total = sum(batch.nbytes for batch in sent)
    pair.heard[0].wait(lambda: pair.heard[0].credits[CHANNEL] >= total, "all credit")
    assert pair.heard[0].credits == {CHANNEL: total}


def test_credit_given_before_the_channel_opens_reaches_the_sender(network: Network) -> None:
    pair = Pair(network)
    pair.slots[1].grant(CHANNEL, 1000)
    pair.slots[1].grant(CHANNEL, 24)
    pair.send(Watermark(1))
    pair.heard[0].wait(lambda: pair.heard[0].credits[CHANNEL] == 1024, "early credit")


def test_a_channel_that_is_never_granted_does_not_hold_up_its_neighbour(network: Network) -> None:
    """S4-19."""
    pair = Pair(network)
    window = 256 * 1024
    stuck = Credits([CHANNEL], window)
    batch, recorder = numbers(0, 4096), pair.heard[0]
    pair.heard[1].on_arrival = lambda channel, message: (
        pair.slots[1].grant(channel, batch.nbytes) if channel == NEIGHBOUR else None
    )
    while stuck.runnable:
        stuck.spend(CHANNEL, batch.nbytes)
        pair.send(batch)
    for step in range(500):  # 16 MB, many windows
        spent = step * batch.nbytes
        recorder.wait(lambda spent=spent: spent - recorder.credits[NEIGHBOUR] < window, "credit")  # type: ignore[misc]
        pair.send(batch, channel=NEIGHBOUR)
    assert len(pair.received(500, NEIGHBOUR)) == 500
    assert pair.heard[0].credits[CHANNEL] == 0
    assert not pair.losses


# ---------------------------------------------------------------- numbers


def test_a_gap_is_a_loss(network: Network) -> None:
    """S1-08."""
    recorder = Recorder()
    slot = network.exchange(1, recorder)
    network.forge(slot.address, CHANNEL, [(0, numbers(0, 1)), (2, numbers(2, 1)), (1, numbers(1, 1))])
    assert "message 1 is missing: 2 came instead" in recorder.wait_for_loss(CHANNEL)
    assert recorder.messages[CHANNEL] == [numbers(0, 1)]


def test_a_repeat_is_dropped(network: Network) -> None:
    """S1-08."""
    recorder = Recorder()
    slot = network.exchange(1, recorder)
    forged: list[tuple[int, Message]] = [(0, numbers(0, 1)), (0, numbers(0, 1)), (1, Watermark(5)), (1, Watermark(5))]
    network.forge(slot.address, CHANNEL, [*forged, (2, EndOfPartition())])
    assert recorder.wait_for(CHANNEL, 3) == [numbers(0, 1), Watermark(5), EndOfPartition()]
    assert not recorder.losses


def test_a_channel_is_opened_once(network: Network) -> None:
    """Two processes that both take themselves for the sender cannot mix their messages."""
    pair = Pair(network)
    pair.send(Watermark(1))
    pair.received(1)
    recorder = Recorder()
    impostor = network.exchange(0, recorder)
    impostor.connect({1: pair.slots[1].address})
    impostor.send(CHANNEL, 1, Watermark(2))
    assert "was opened before" in recorder.wait_for_loss(CHANNEL)
    pair.send(Watermark(3))
    assert pair.received(2) == [Watermark(1), Watermark(3)]


# ---------------------------------------------------------------- ends


def test_a_sender_that_closes_without_end_of_partition_is_a_loss_told_once(network: Network) -> None:
    """S1-07."""
    pair = Pair(network)
    pair.send(numbers(0, 1), EndOfData(drain=True))
    pair.received(2)
    pair.slots[0].close()
    assert "before EndOfPartition" in pair.heard[1].wait_for_loss(CHANNEL)
    pair.slots[1].close()
    assert len(pair.heard[1].losses) == 1
    assert not pair.heard[0].losses, "whoever closes knows"


def test_a_receiver_that_closes_is_a_loss_for_the_sender_told_once(network: Network) -> None:
    pair = Pair(network)
    pair.send(Watermark(1))
    pair.received(1)
    pair.slots[1].close()
    pair.heard[0].wait_for_loss(CHANNEL)
    pair.send(Watermark(2), Watermark(3))
    pair.slots[0].close()
    assert len(pair.heard[0].losses) == 1


def test_closing_after_end_of_partition_is_silent(network: Network) -> None:
    pair = Pair(network)
    pair.send(numbers(0, 1), EndOfPartition())
    pair.received(2)
    for slot in pair.slots:
        slot.close()
    assert not pair.losses


def test_what_was_sent_before_end_of_partition_arrives_though_the_sender_closes_at_once(network: Network) -> None:
    pair = Pair(network)
    script: list[Message] = [numbers(step, 1000) for step in range(200)]
    script.append(EndOfPartition())
    pair.send(*script)
    pair.slots[0].close()
    assert pair.received(len(script)) == script
    assert not pair.losses


def test_nothing_may_follow_end_of_partition(network: Network) -> None:
    pair = Pair(network)
    pair.send(EndOfPartition())
    with pytest.raises(ProtocolViolation, match=r"0:0>1.*Watermark after EndOfPartition"):
        pair.send(Watermark(1))


def test_a_slot_whose_address_nobody_told_is_named(network: Network) -> None:
    with pytest.raises(ProtocolViolation, match="slot 5"):
        Pair(network).slots[0].send(ChannelId(0, 0, 5), 5, Watermark(1))


def test_a_closed_exchange_sends_and_tells_nothing(network: Network) -> None:
    pair = Pair(network)
    pair.slots[0].close()
    pair.send(Watermark(1))
    pair.slots[0].grant(ChannelId(0, 1, 0), 10)
    pair.slots[0].close()
    assert not pair.losses
    assert not pair.heard[1].messages


def test_two_slots_may_close_and_send_at_the_same_time(network: Network) -> None:
    for _ in range(10):
        pair = Pair(network)
        start = threading.Barrier(4)

        def talk(source: int, pair: Pair = pair, start: threading.Barrier = start) -> None:
            start.wait()
            for edge in range(50):
                pair.slots[source].send(ChannelId(edge, source, 1 - source), 1 - source, Watermark(edge))

        def close(slot: int, pair: Pair = pair, start: threading.Barrier = start) -> None:
            start.wait()
            pair.slots[slot].close()

        acts = [threading.Thread(target=act, args=(slot,)) for act in (talk, close) for slot in (0, 1)]
        for act in acts:
            act.start()
        for act in acts:
            act.join(PATIENCE_S)
            assert not act.is_alive()


# ---------------------------------------------------------------- fences


@pytest.mark.parametrize(
    ("token", "secret", "reason"),
    [
        (Token(6), SECRET, "attempt token 6 is older than 7"),
        (Token(8), SECRET, "attempt token 8 is newer than 7"),
        (TOKEN, "a guess", "wrong secret"),
    ],
)
def test_strangers_are_refused_and_told(network: Network, token: Token, secret: str, reason: str) -> None:
    """S1-10, S1-12: the receiver takes no mixture of old and new."""
    pair = Pair(network, token, secret)
    pair.send(numbers(0, 1))
    assert reason in pair.heard[0].wait_for_loss(CHANNEL)
    pair.send(numbers(1, 1))
    assert len(pair.heard[0].losses) == 1
    assert not pair.heard[1].messages
    assert not pair.heard[1].losses


def test_a_stranger_who_only_ends_is_refused_too(network: Network) -> None:
    pair = Pair(network, Token(6))
    pair.send(EndOfPartition())
    assert "older" in pair.heard[0].wait_for_loss(CHANNEL)
    assert not pair.heard[1].messages


# ---------------------------------------------------------------- batches


def test_every_kind_of_column_survives(network: Network) -> None:
    batch = pa.record_batch(
        {
            "string": ["a", None, "größer", ""],
            "when": pa.array([datetime(2013, 1, 1, tzinfo=UTC), None, None, datetime(1960, 1, 1, tzinfo=UTC)]),
            "millis": pa.array([1, None, 3, -4], pa.timestamp("ms")),
            "float": [1.5, float("inf"), None, -0.0],
            "flag": [True, None, False, True],
            "binary": [b"\x00\xff", None, b"", b"x"],
            "word": pa.array(["x", None, "y", "x"]).dictionary_encode(),
            "list": [[1, 2], None, [], [None]],
            "struct": [{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 2, "b": "y"}],
            "nothing": pa.nulls(4),
        }
    )
    pair = Pair(network)
    received = transferred(pair, batch, batch.slice(1, 2), batch.slice(4))
    assert received == [batch, batch.slice(1, 2), batch.slice(4)]
    assert received[0].schema.equals(batch.schema)


def test_dictionaries_may_change_from_batch_to_batch(network: Network) -> None:
    batches = [
        pa.record_batch({"word": pa.array(words, pa.string()).dictionary_encode()})
        for words in (["a", "b", "a"], ["c", None], [], ["a", "z", "b"])
    ]
    assert transferred(Pair(network), *batches) == batches


def test_empty_batches_count_as_messages(network: Network) -> None:
    empty = pa.record_batch({"n": pa.array([], pa.int64()), "s": pa.array([], pa.string())})
    assert transferred(Pair(network), empty, empty) == [empty, empty]


def test_batches_of_tens_of_megabytes_pass(network: Network) -> None:
    batch = pa.record_batch({"n": pa.array(range(2_000_000), pa.int64()), "s": pa.array(["word"] * 2_000_000)})
    assert batch.nbytes > 30_000_000
    assert transferred(Pair(network), batch, batch.slice(0, 10), batch) == [batch, batch.slice(0, 10), batch]
