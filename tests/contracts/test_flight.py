"""What only the real channels can show: schemas, alignment, broken peers, and an end that waits for nobody."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import EndOfPartition, Message, Records, Watermark
from runtime.ports import Exchange
from tests.contracts.channels import (
    CHANNEL,
    NEIGHBOUR,
    PATIENCE_S,
    SECRET,
    FlightNetwork,
    LocalNetwork,
    Pair,
    Recorder,
    numbers,
    records,
    transferred,
)

SOON_S = 8.0  #: below every heartbeat's timeout; generous, for this machine may be busy with other things


@pytest.fixture(params=[FlightNetwork, LocalNetwork], ids=["flight", "local"])
def flight(request: pytest.FixtureRequest) -> Iterator[FlightNetwork]:
    flight: FlightNetwork = request.param()
    yield flight
    flight.close()


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
    assert pair.heard[0].own_losses == [CHANNEL], "the sender has failed, and not its peer"
    assert not pair.heard[1].own_losses


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
    recorder = Recorder()
    slot = flight.exchange(1, recorder)
    writer = flight.stream(slot.address, CHANNEL)
    if metadata:
        writer.write_metadata(metadata)
    else:
        batch = numbers(0, 1).payload
        writer.begin(batch.schema)
        writer.write_with_metadata(batch, metadata)
    assert "broken" in recorder.wait_for_loss(CHANNEL)
    assert not recorder.messages


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

    recorder = Recorder()
    slot = flight.exchange(0, recorder)
    with Vanishing("grpc://127.0.0.1:0") as receiver:
        slot.connect({1: f"grpc://127.0.0.1:{receiver.port}"})
        slot.send(CHANNEL, 1, EndOfPartition() if ended else Watermark(1))
        wait_until_sent(CHANNEL)
    assert len(recorder.losses) == losses


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
    """S1-07."""
    recorder = Recorder()
    slot = flight.exchange(0, recorder)
    channel = ChannelId(0, 1, 0)
    with other_process("send", SECRET, slot.address) as (process, _):
        recorder.wait_for(channel, 1)
        killed_at = time.monotonic()
        process.send_signal(signal.SIGKILL)
        recorder.wait_for_loss(channel)
        assert time.monotonic() - killed_at < SOON_S, "no heartbeat is needed for this"
    assert len(recorder.losses) == 1


def test_a_receiver_process_that_is_killed_is_a_loss_at_once(flight: FlightNetwork) -> None:
    recorder = Recorder()
    with other_process("listen", SECRET) as (process, address):
        slot = flight.exchange(0, recorder)
        slot.connect({1: address})
        slot.send(CHANNEL, 1, Watermark(1))
        killed_at = time.monotonic()
        process.send_signal(signal.SIGKILL)
        recorder.wait_for_loss(CHANNEL)
        assert time.monotonic() - killed_at < SOON_S, "no heartbeat is needed for this"


def own_threads() -> set[str]:
    """Threads of Python's making; those in which gRPC calls us belong to gRPC."""
    return {thread.name for thread in threading.enumerate() if not thread.name.startswith("Dummy")}


def closes_cleanly(slot: Exchange, before: set[str]) -> None:
    started = time.monotonic()
    slot.close()
    assert time.monotonic() - started < SOON_S, "two seconds are promised"
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
    assert time.monotonic() - started < SOON_S, "two seconds are promised"
    assert not pair.heard[0].losses
    for edge in range(5):
        pair.heard[1].wait_for_loss(ChannelId(edge, 0, 1))
        pair.heard[1].wait_for_loss(ChannelId(edge, 1, 0))
    assert other
    closes_cleanly(pair.slots[1], before)


@pytest.mark.parametrize("when", ["before it is connected", "while it receives", "while it sends"])
def test_close_does_not_wait_for_a_peer_that_hangs(flight: FlightNetwork, when: str) -> None:
    before = own_threads()
    recorder = Recorder()
    slot = flight.exchange(0, recorder)
    role: tuple[Any, ...] = ("send", SECRET, slot.address) if when == "while it sends" else ("listen", SECRET)
    with other_process(*role) as (process, address):
        slot.connect({1: address})
        if when == "while it sends":
            recorder.wait_for(ChannelId(0, 1, 0), 1)
        if when == "while it receives":
            slot.send(CHANNEL, 1, Watermark(1))
            slot.grant(ChannelId(0, 1, 0), 1)
        process.send_signal(signal.SIGSTOP)
        for _ in range(50):  # more than any window of gRPC
            slot.send(CHANNEL, 1, numbers(0, 100_000))
        slot.send(NEIGHBOUR, 1, EndOfPartition())
        closes_cleanly(slot, before)
        process.send_signal(signal.SIGCONT)
