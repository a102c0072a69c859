"""The contract of `ports.Exchange`, over the in-memory twin and Flight (S1-07, S1-08, S3-45, S4-17 to S4-19)."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.core.flow import Credits
from runtime.core.ids import ChannelId, CheckpointId, Token
from runtime.core.messages import (
    Barrier,
    CancelBarrier,
    CheckpointKind,
    EndOfData,
    EndOfPartition,
    Idle,
    Message,
    Records,
    Watermark,
)
from runtime.errors import ProtocolViolation
from tests.contracts.channels import (
    PATIENCE_S,
    SECRET,
    TOKEN,
    CountingExchange,
    FlightNetwork,
    MemoryNetwork,
    Network,
    Recorder,
    numbers,
    records,
)

CHANNEL = ChannelId(edge=0, source=0, target=1)
NEIGHBOUR = ChannelId(edge=1, source=0, target=1)


@pytest.fixture(params=[MemoryNetwork, FlightNetwork], ids=["memory", "flight"])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    made: Network = request.param()
    yield made
    made.close()


@pytest.fixture
def flight() -> Iterator[FlightNetwork]:
    made = FlightNetwork()
    yield made
    made.close()


class Pair:
    """Slots 0 and 1, connected."""

    def __init__(self, network: Network, token: Token = TOKEN, secret: str = SECRET) -> None:
        self.heard = (Recorder(), Recorder())
        first = network.exchange(0, self.heard[0], token, secret)
        self.slots = (first, network.exchange(1, self.heard[1]))
        peers = {index: slot.address for index, slot in enumerate(self.slots)}
        for slot in self.slots:
            slot.connect(peers)

    def send(self, *messages: Message, channel: ChannelId = CHANNEL) -> None:
        for message in messages:
            self.slots[0].send(channel, 1, message)

    def received(self, count: int, channel: ChannelId = CHANNEL) -> list[Message]:
        return self.heard[1].wait_for(channel, count)

    @property
    def losses(self) -> list[tuple[ChannelId, str]]:
        return self.heard[0].losses + self.heard[1].losses


def transferred(pair: Pair, *batches: pa.RecordBatch) -> list[pa.RecordBatch]:
    pair.send(*(records(batch) for batch in batches), EndOfPartition())
    received = pair.received(len(batches) + 1)
    assert not pair.losses
    return [message.payload for message in received if isinstance(message, Records)]


# ---------------------------------------------------------------- order


def test_under_load_in_both_directions_every_channel_keeps_its_order_and_loses_nothing(network: Network) -> None:
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
    pair = Pair(network)
    script: list[Message] = [
        Watermark(-5),
        Barrier(CheckpointId(1), CheckpointKind.CHECKPOINT, 1_700_000_000_000),
        numbers(0, 3),
        Idle(),
        Barrier(CheckpointId(2), CheckpointKind.SAVEPOINT, 1_700_000_000_001),
        numbers(3, 3),
        CancelBarrier(CheckpointId(3)),
        EndOfData(drain=False),
        Barrier(CheckpointId(4), CheckpointKind.DRAIN, 1_700_000_000_002),
        EndOfPartition(),
    ]
    pair.send(*script)
    assert pair.received(len(script)) == script
    assert not pair.losses


def test_a_channel_that_never_carries_records_carries_control(network: Network) -> None:
    pair = Pair(network)
    pair.send(Watermark(1), EndOfData(drain=True), EndOfPartition())
    assert pair.received(3) == [Watermark(1), EndOfData(drain=True), EndOfPartition()]
    assert not pair.losses


# ---------------------------------------------------------------- credits


def test_credit_comes_back_to_the_sender_of_that_channel_in_full(network: Network) -> None:
    pair = Pair(network)
    pair.heard[1].on_arrival = lambda channel, message: pair.slots[1].grant(
        channel, 0, message.nbytes if isinstance(message, Records) else 0
    )
    sent = [numbers(0, rows) for rows in range(1, 200)]
    pair.send(*sent)
    total = sum(batch.nbytes for batch in sent)
    pair.heard[0].wait(lambda: pair.heard[0].credits[CHANNEL] >= total, "all credit")
    assert pair.heard[0].credits == {CHANNEL: total}


def test_credit_given_before_the_channel_opens_reaches_the_sender(network: Network) -> None:
    pair = Pair(network)
    pair.slots[1].grant(CHANNEL, 0, 1000)
    pair.slots[1].grant(CHANNEL, 0, 24)
    pair.send(Watermark(1))
    pair.heard[0].wait(lambda: pair.heard[0].credits[CHANNEL] == 1024, "early credit")


def test_a_channel_that_is_never_granted_does_not_hold_up_its_neighbour(network: Network) -> None:
    pair = Pair(network)
    window = 256 * 1024
    stuck = Credits([CHANNEL], window)
    batch, heard = numbers(0, 4096), pair.heard[0]
    pair.heard[1].on_arrival = lambda channel, message: (
        pair.slots[1].grant(channel, 0, batch.nbytes) if channel == NEIGHBOUR else None
    )
    while stuck.runnable:
        stuck.spend(CHANNEL, batch.nbytes)
        pair.send(batch)
    for step in range(500):  # 16 MB, many windows
        spent = step * batch.nbytes
        heard.wait(lambda spent=spent: spent - heard.credits[NEIGHBOUR] < window, "credit")  # type: ignore[misc]
        pair.send(batch, channel=NEIGHBOUR)
    assert len(pair.received(500, NEIGHBOUR)) == 500
    assert pair.heard[0].credits[CHANNEL] == 0
    assert not pair.losses


# ---------------------------------------------------------------- numbers


def test_a_gap_is_a_loss(network: Network) -> None:
    heard = Recorder()
    slot = network.exchange(1, heard)
    network.forge(slot.address, CHANNEL, [(0, numbers(0, 1)), (2, numbers(2, 1)), (1, numbers(1, 1))])
    assert "message 1 is missing: 2 came instead" in heard.wait_for_loss(CHANNEL)
    assert heard.messages[CHANNEL] == [numbers(0, 1)]


def test_a_repeat_is_dropped_and_counted(network: Network) -> None:
    heard = Recorder()
    slot = network.exchange(1, heard)
    forged: list[tuple[int, Message]] = [(0, numbers(0, 1)), (0, numbers(0, 1)), (1, Watermark(5)), (1, Watermark(5))]
    network.forge(slot.address, CHANNEL, [*forged, (2, EndOfPartition())])
    assert heard.wait_for(CHANNEL, 3) == [numbers(0, 1), Watermark(5), EndOfPartition()]
    assert slot.repeats == 2
    assert not heard.losses


def test_a_channel_is_opened_once(network: Network) -> None:
    """Two processes that both take themselves for the sender cannot mix their messages."""
    pair = Pair(network)
    pair.send(Watermark(1))
    pair.received(1)
    heard = Recorder()
    impostor = network.exchange(0, heard)
    impostor.connect({1: pair.slots[1].address})
    impostor.send(CHANNEL, 1, Watermark(2))
    assert "was opened before" in heard.wait_for_loss(CHANNEL)
    pair.send(Watermark(3))
    assert pair.received(2) == [Watermark(1), Watermark(3)]


# ---------------------------------------------------------------- ends


def test_a_sender_that_closes_without_end_of_partition_is_a_loss_told_once(network: Network) -> None:
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
    pair.slots[0].grant(ChannelId(0, 1, 0), 1, 10)
    pair.slots[0].close()
    assert not pair.losses
    assert not pair.heard[1].messages


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


# ---------------------------------------------------------------- Flight alone


def test_a_batch_of_another_schema_is_cast_to_that_of_its_stream(flight: FlightNetwork) -> None:
    pair = Pair(flight)
    narrow = pa.record_batch({"n": pa.array([4], pa.int32()), "s": pa.array(["x"]).dictionary_encode()})
    wide = pa.record_batch({"n": pa.array([1], pa.int64()), "s": pa.array(["y"])})
    assert transferred(pair, wide, narrow) == [wide, narrow.cast(wide.schema)]


def test_a_batch_that_does_not_fit_its_stream_is_a_loss_with_a_reason(flight: FlightNetwork) -> None:
    pair = Pair(flight)
    pair.send(numbers(0, 1))
    pair.received(1)
    pair.send(records(pa.record_batch({"other": ["x"]})))
    assert "cannot be sent" in pair.heard[0].wait_for_loss(CHANNEL)
    pair.heard[1].wait_for_loss(CHANNEL)
    wait_until_sent(CHANNEL)
    assert len(pair.losses) == 2, "each side is told once"


def test_a_payload_that_is_no_batch_is_a_loss_not_a_silence(flight: FlightNetwork) -> None:
    pair = Pair(flight)
    pair.send(Watermark(1))
    pair.received(1)
    pair.send(Records("not a batch", 1, 1))
    assert "str is no record batch" in pair.heard[0].wait_for_loss(CHANNEL)
    pair.heard[1].wait_for_loss(CHANNEL)


@pytest.mark.parametrize(
    "metadata",
    [b"", b"x", bytes(8) + b"\xff", bytes(8) + b"\x01\xc1", bytes(25)],
    ids=["none", "short", "kind", "body", "no batch"],
)
def test_a_message_that_cannot_be_read_is_a_loss(flight: FlightNetwork, metadata: bytes) -> None:
    heard = Recorder()
    slot = flight.exchange(1, heard)
    writer = flight.stream(slot.address, CHANNEL)
    if metadata:
        writer.write_metadata(metadata)
    else:
        batch = numbers(0, 1).payload
        writer.begin(batch.schema)
        writer.write(batch)
    assert "broken" in heard.wait_for_loss(CHANNEL)
    assert not heard.messages


def test_a_listener_that_fails_loses_the_channel_on_both_sides(flight: FlightNetwork) -> None:
    pair = Pair(flight)

    def fail(channel: ChannelId, message: Message) -> None:
        raise ZeroDivisionError("in the listener")

    pair.heard[1].on_arrival = fail
    pair.send(Watermark(1))
    assert pair.heard[1].wait_for_loss(CHANNEL) == "the listener failed"
    pair.heard[0].wait_for_loss(CHANNEL)


def wait_until_sent(channel: ChannelId) -> None:
    """Until the sender has nothing more to do for this channel."""
    for thread in threading.enumerate():
        if thread.name == f"send-{channel}":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_a_channel_that_has_ended_takes_its_threads_with_it_and_tells_nobody(flight: FlightNetwork) -> None:
    pair = Pair(flight)
    channels = [ChannelId(edge, 0, 1) for edge in range(100)]
    for channel in channels:
        pair.send(Watermark(1), EndOfPartition(), channel=channel)
    for channel in channels:
        wait_until_sent(channel)
        assert pair.received(2, channel) == [Watermark(1), EndOfPartition()]
    assert not [thread for thread in threading.enumerate() if thread.name.endswith(">1")]
    assert not pair.losses


@pytest.mark.parametrize(("ended", "losses"), [(True, 0), (False, 1)])
def test_a_receiver_that_vanishes_is_a_loss_only_before_the_end(
    flight: FlightNetwork, ended: bool, losses: int
) -> None:
    import pyarrow.flight as fl

    class Vanishing(fl.FlightServerBase):
        def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            reader.read_chunk()
            raise fl.FlightUnavailableError("socket closed")

    heard = Recorder()
    slot = flight.exchange(0, heard)
    with Vanishing("grpc://127.0.0.1:0") as receiver:
        slot.connect({1: f"grpc://127.0.0.1:{receiver.port}"})
        slot.send(CHANNEL, 1, EndOfPartition() if ended else Watermark(1))
        wait_until_sent(CHANNEL)
    assert len(heard.losses) == losses


def test_many_channels_are_open_at_once(flight: FlightNetwork) -> None:
    pair = Pair(flight)
    for edge in range(150):
        pair.send(Watermark(edge), channel=ChannelId(edge, 0, 1))
    for edge in range(150):
        assert pair.received(1, ChannelId(edge, 0, 1)) == [Watermark(edge)]
    assert not pair.losses


def test_received_columns_are_aligned_for_numpy(flight: FlightNetwork) -> None:
    """Unaligned arrays fall off numpy's fast paths."""
    batch = pa.record_batch({"s": ["a", "bcd", "e"], "n": pa.array([1, 2, 3], pa.int64()), "f": [1.0, 2.0, 3.0]})
    for received in transferred(Pair(flight), *[batch] * 5):
        assert all(received.column(name).to_numpy().flags.aligned for name in ("n", "f"))


def test_an_address_where_nobody_listens_is_a_loss(flight: FlightNetwork) -> None:
    pair = Pair(flight)
    pair.slots[1].close()
    pair.send(Watermark(1))
    pair.heard[0].wait_for_loss(CHANNEL)


def test_a_proxy_in_the_environment_is_not_asked(flight: FlightNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    pair = Pair(flight)
    pair.send(Watermark(1))
    assert pair.received(1) == [Watermark(1)]


@contextlib.contextmanager
def other_process(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A slot in another process, and its address."""
    here = Path(__file__)
    process = subprocess.Popen(
        [sys.executable, str(here.with_name("channel_process.py")), *arguments],
        env={**os.environ, "PYTHONPATH": str(here.parents[2])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_sender_process_that_is_killed_is_a_loss_at_once(flight: FlightNetwork) -> None:
    heard = Recorder()
    slot = flight.exchange(0, heard)
    channel = ChannelId(0, 1, 0)
    with other_process("send", SECRET, slot.address) as (process, _):
        heard.wait_for(channel, 1)
        killed_at = time.monotonic()
        process.send_signal(signal.SIGKILL)
        heard.wait_for_loss(channel)
        assert time.monotonic() - killed_at < 5, "far below any heartbeat"
    assert len(heard.losses) == 1


def test_a_receiver_process_that_is_killed_is_a_loss_at_once(flight: FlightNetwork) -> None:
    heard = Recorder()
    with other_process("listen", SECRET) as (process, address):
        slot = flight.exchange(0, heard)
        slot.connect({1: address})
        slot.send(CHANNEL, 1, Watermark(1))
        killed_at = time.monotonic()
        process.send_signal(signal.SIGKILL)
        heard.wait_for_loss(CHANNEL)
        assert time.monotonic() - killed_at < 5, "far below any heartbeat"


def own_threads() -> set[str]:
    """Threads of Python's making; those in which gRPC calls us belong to gRPC."""
    return {thread.name for thread in threading.enumerate() if not thread.name.startswith("Dummy")}


def closes_cleanly(slot: CountingExchange, before: set[str]) -> None:
    started = time.monotonic()
    slot.close()
    assert time.monotonic() - started < 2.5, "two seconds are promised"
    assert own_threads() <= before


def test_close_ends_open_exchanges_in_time_and_leaves_no_thread(flight: FlightNetwork) -> None:
    before = own_threads()
    pair = Pair(flight)
    for edge in range(5):
        pair.slots[0].send(ChannelId(edge, 0, 1), 1, numbers(0, 10))
        pair.slots[1].send(ChannelId(edge, 1, 0), 0, Watermark(1))
    for edge in range(5):
        pair.heard[1].wait_for(ChannelId(edge, 0, 1), 1)
        pair.heard[0].wait_for(ChannelId(edge, 1, 0), 1)
    other = {thread.name for thread in threading.enumerate() if thread.name.endswith(">0")}
    started = time.monotonic()
    pair.slots[0].close()
    assert time.monotonic() - started < 2.5, "two seconds are promised"
    assert not pair.heard[0].losses
    for edge in range(5):
        pair.heard[1].wait_for_loss(ChannelId(edge, 0, 1))
        pair.heard[1].wait_for_loss(ChannelId(edge, 1, 0))
    assert other
    closes_cleanly(pair.slots[1], before)


@pytest.mark.parametrize("when", ["before it is connected", "while it receives", "while it sends"])
def test_close_does_not_wait_for_a_peer_that_hangs(flight: FlightNetwork, when: str) -> None:
    before = own_threads()
    heard = Recorder()
    slot = flight.exchange(0, heard)
    role: tuple[Any, ...] = ("send", SECRET, slot.address) if when == "while it sends" else ("listen", SECRET)
    with other_process(*role) as (process, address):
        slot.connect({1: address})
        if when == "while it sends":
            heard.wait_for(ChannelId(0, 1, 0), 1)
        if when == "while it receives":
            slot.send(CHANNEL, 1, Watermark(1))
            slot.grant(ChannelId(0, 1, 0), 1, 1)
        process.send_signal(signal.SIGSTOP)
        for _ in range(50):  # more than any window of gRPC
            slot.send(CHANNEL, 1, numbers(0, 100_000))
        slot.send(NEIGHBOUR, 1, EndOfPartition())
        closes_cleanly(slot, before)
        process.send_signal(signal.SIGCONT)
