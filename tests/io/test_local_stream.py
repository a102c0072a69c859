"""Streams over Unix sockets: which slots use them, dictionaries in any column, and peers that break the protocol."""

import errno
import gc
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import Message, Records, Watermark
from runtime.io.local_stream import LocalServer, LocalStream, LocalStreamError
from tests.contracts.channels import CHANNEL, LocalNetwork, Pair, records, transferred

NOWHERE = "grpc://127.0.0.1:9"


@pytest.fixture
def network() -> Iterator[LocalNetwork]:
    network = LocalNetwork()
    yield network
    network.close()


def test_slots_of_a_host_need_no_flight(network: LocalNetwork) -> None:
    pair = Pair(network)
    local = pair.slots[1].address.partition(" ")[2]
    pair.slots[0].connect({1: f"{NOWHERE} {local}"})
    pair.send(Watermark(1))
    assert pair.received(1) == [Watermark(1)]


def test_a_slot_of_another_host_is_reached_by_flight(network: LocalNetwork) -> None:
    """No process of this host has its local name, as in another network namespace."""
    pair = Pair(network)
    flight = pair.slots[1].address.partition(" ")[0]
    pair.slots[0].connect({1: f"{flight} unix:@weir-on-another-host"})
    pair.send(Watermark(1))
    assert pair.received(1) == [Watermark(1)]


def test_dictionaries_in_nested_columns_change_from_batch_to_batch(network: LocalNetwork) -> None:
    kind = pa.struct([("codes", pa.list_(pa.dictionary(pa.int8(), pa.string())))])
    batches = [pa.record_batch({"s": pa.array([{"codes": [text, "x"]}], kind)}) for text in ("a", "b")]
    assert transferred(Pair(network), *batches) == batches


class Codes(pa.ExtensionType):
    """An extension type with a dictionary inside."""

    def __init__(self) -> None:
        super().__init__(pa.list_(pa.dictionary(pa.int8(), pa.string())), "weir.test.codes")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> "Codes":
        return cls()


def test_an_extension_type_over_a_dictionary_passes(network: LocalNetwork) -> None:
    pa.register_extension_type(Codes())
    try:
        kind = Codes()
        storage = pa.array([["a", "b"], ["a"]], kind.storage_type)
        batch = pa.record_batch({"c": pa.ExtensionArray.from_storage(kind, storage)})
        assert transferred(Pair(network), batch) == [batch]
    finally:
        pa.unregister_extension_type("weir.test.codes")


def test_a_default_timeout_of_sockets_breaks_no_stream() -> None:
    def serve(opening: bytes, stream: LocalStream) -> None:
        assert list(stream.frames()) == [(b"late", None)]
        stream.write_metadata(opening)

    socket.setdefaulttimeout(0.05)
    try:
        server = LocalServer(serve)
        time.sleep(0.1)
        stream = LocalStream.connect(server.name, b"open")
    finally:
        socket.setdefaulttimeout(None)
    assert stream is not None
    with stream:
        time.sleep(0.1)
        stream.write_metadata(b"late")
        stream._socket.shutdown(socket.SHUT_WR)
        assert list(stream.frames()) == [(b"open", None)]
    for thread in server.shut_down():
        thread.join(30)


def test_slices_are_sent_without_the_rest(network: LocalNetwork) -> None:
    batch = pa.record_batch({"n": pa.array(range(1_000_000), pa.int64()), "s": ["text"] * 1_000_000})
    (received,) = transferred(Pair(network), batch.slice(17, 5))
    assert received == batch.slice(17, 5)
    assert received.get_total_buffer_size() < 10_000


def connected(name: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(f"\0{name}")
    return client


@pytest.mark.parametrize(
    "data",
    [b"", b"x", struct.pack("<BIQ", 1, 0, 0), struct.pack("<BIQ", 0, 1 << 31, 0), struct.pack("<BIQ", 0, 0, 1 << 60)],
    ids=["nothing", "short", "no opening", "long opening", "opening with a body"],
)
def test_a_stranger_is_refused_before_the_channel_hears_of_it(data: bytes) -> None:
    served: list[bytes] = []
    server = LocalServer(lambda opening, stream: served.append(opening))
    with connected(server.name) as stranger:
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(30)
        assert b"refused" in stranger.recv(1000) if data != b"x" else stranger.recv(1000)
    assert not served
    for thread in server.shut_down():
        thread.join(30)


def test_a_stream_is_served_once_a_descriptor_is_free() -> None:
    server = LocalServer(lambda opening, stream: stream.write_metadata(opening))
    gc.collect()  # or descriptors of earlier tests become free
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        lowest_free = os.dup(client.fileno())
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            client.connect(f"\0{server.name}")
            client.sendall(struct.pack("<BIQ", 0, 4, 0) + b"open")
            time.sleep(0.3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        client.settimeout(30)
        assert client.recv(1000).endswith(b"open")
    for thread in server.shut_down():
        thread.join(30)
        assert not thread.is_alive()


def test_a_frame_that_is_cut_off_breaks_the_stream() -> None:
    errors: list[str] = []
    end = threading.Event()

    def serve(opening: bytes, stream: LocalStream) -> None:
        try:
            list(stream.frames())
        except LocalStreamError as error:
            errors.append(str(error))
        end.set()

    server = LocalServer(serve)
    stream = LocalStream.connect(server.name, b"open")
    assert stream is not None
    with stream:
        stream._socket.sendall(struct.pack("<BIQ", 1, 10, 0) + b"12345")
        stream._socket.shutdown(socket.SHUT_WR)
        assert end.wait(30)
    assert errors == ["the stream ended within a frame"]
    for thread in server.shut_down():
        thread.join(30)


class CrampedSocket(socket.socket):
    """A socket that sends `chunk_bytes` at a time, and nothing more once its `sends` are used up."""

    sends: ClassVar[dict[bool, int]] = {}  #: by whether the socket connects; others are accepted
    chunk_bytes: ClassVar[int] = 1 << 30
    connects = False

    def connect(self, address: Any) -> None:
        self.connects = True
        super().connect(address)

    def sendmsg(self, buffers: Any, *arguments: Any) -> int:
        left = self.sends.get(self.connects, 1)
        if not left:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        if self.connects in self.sends:
            self.sends[self.connects] = left - 1
        return super().send(b"".join(buffers)[: self.chunk_bytes])


def test_a_frame_that_is_sent_in_pieces_arrives_as_a_whole(
    network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(network)
    batches = [pa.record_batch({"n": pa.array(range(start, start + 9), pa.int64())}) for start in (0, 9)]
    for chunk_bytes in (7, 40):
        monkeypatch.setattr(CrampedSocket, "chunk_bytes", chunk_bytes)
        monkeypatch.setattr(socket, "socket", CrampedSocket)
        channel = ChannelId(0, 0, chunk_bytes)
        pair.send(*map(records, batches), channel=channel)
        payloads = [message.payload for message in pair.received(2, channel) if isinstance(message, Records)]
        assert payloads == batches


@pytest.mark.parametrize(("at_sender", "sends"), [(True, 2), (True, 3), (False, 0)])
def test_a_channel_is_lost_when_the_kernel_has_no_memory_for_a_frame(
    at_sender: bool, sends: int, network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOBUFS in the middle of a channel: both ends learn of the loss, and the end that failed names the reason."""
    pair = Pair(network)
    monkeypatch.setattr(CrampedSocket, "sends", {at_sender: sends})
    monkeypatch.setattr(socket, "socket", CrampedSocket)
    pair.send(Watermark(1))
    pair.received(1)
    for time_ms in (2, 3):
        pair.send(Watermark(time_ms))
    pair.slots[1].grant(CHANNEL, 10)
    failed, other = pair.heard if at_sender else pair.heard[::-1]
    assert "cannot be sent: [Errno 105]" in failed.wait_for_loss(CHANNEL)
    assert "before EndOfPartition" in other.wait_for_loss(CHANNEL)
    assert (failed.own_losses, other.own_losses) == ([CHANNEL], []), "a restart of the peer would not help"


def test_a_channel_uses_flight_if_no_local_stream_can_begin(
    network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(network)
    monkeypatch.setattr(CrampedSocket, "sends", {True: 0})
    monkeypatch.setattr(socket, "socket", CrampedSocket)
    pair.send(Watermark(1))
    assert pair.received(1) == [Watermark(1)]


def test_a_channel_ends_when_its_receiver_closes_while_the_sender_waits_for_room(network: LocalNetwork) -> None:
    """The sender fills the socket of a receiver that reads nothing."""
    release = threading.Event()
    pair = Pair(network)

    def wait(channel: ChannelId, message: Message) -> None:
        release.wait(30)

    pair.heard[1].on_arrival = wait
    batch = records(pa.record_batch({"n": pa.array(range(1_000_000), pa.int64())}))
    pair.send(*[batch] * 3)
    pair.received(1)
    closing = threading.Thread(target=pair.slots[1].close)
    closing.start()
    assert pair.heard[0].wait_for_loss(CHANNEL)
    release.set()
    closing.join(30)
