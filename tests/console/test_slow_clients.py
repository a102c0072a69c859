"""Attacks on the real HTTP server: requests byte by byte, bodies that are too large or have no end."""

import asyncio
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn

from console.asgi import limit_body
from console.slow_clients import DeadlineProtocol
from tests.waiting import until

LIMIT_BYTES = 50_000
HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


class HastyProtocol(DeadlineProtocol):
    request_timeout_s = 0.5


class Reader:
    """In place of Django: reads the whole body, then answers with its length."""

    def __init__(self) -> None:
        self.bodies: list[int] = []
        self.cut_off = 0

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        received = 0
        while (message := await receive())["type"] == "http.request":
            received += len(message["body"])
            if not message["more_body"]:
                self.bodies.append(received)
                await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
                await send({"type": "http.response.body", "body": b""})
                return
        self.cut_off += 1


@pytest.fixture
def reader(settings: Any) -> Reader:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = LIMIT_BYTES
    return Reader()


@pytest.fixture
def address(reader: Reader) -> Iterator[tuple[str, int]]:
    """uvicorn with the protocol and the limit of `make up`, in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    limited = limit_body(reader)
    server = uvicorn.Server(uvicorn.Config(limited, http=HastyProtocol, lifespan="off", log_level="error"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    until(lambda: server.started)
    yield listener.getsockname()
    server.should_exit = True
    thread.join()
    listener.close()


def is_cut_off(client: socket.socket, byte: bytes) -> bool:
    """Sends one more byte, as a slow client does."""
    try:
        client.send(byte)
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def slow_client(address: tuple[str, int], begin: bytes) -> socket.socket:
    client = socket.create_connection(address)
    client.sendall(begin)
    client.setblocking(False)
    return client


@pytest.mark.parametrize(
    ("begin", "byte"),
    [
        pytest.param(b"", b"G", id="request line"),
        pytest.param(HEAD + b"X-Slow: ", b"x", id="header"),
        pytest.param(HEAD + b"Content-Length: 40000\r\n\r\n", b"x", id="body"),
    ],
)
def test_a_request_that_arrives_byte_by_byte_is_cut_off(
    address: tuple[str, int], reader: Reader, begin: bytes, byte: bytes
) -> None:
    """Slow loris: more bytes do not move the deadline, and others are answered meanwhile."""
    with slow_client(address, begin) as slow:
        assert status_of(address, b"x") == 200
        until(lambda: is_cut_off(slow, byte))
    assert status_of(address, b"x") == 200
    assert reader.bodies == [1, 1]


def test_a_connection_may_ask_again_and_is_cut_off_when_it_begins_and_does_not_end(address: tuple[str, int]) -> None:
    """The deadline is of one request, not of the connection."""
    with slow_client(address, HEAD + b"Content-Length: 1\r\n\r\nx") as slow:
        until(lambda: has_answer(slow))
        slow.send(HEAD + b"X-Slow: ")
        until(lambda: is_cut_off(slow, b"x"))


def has_answer(client: socket.socket) -> bool:
    try:
        return client.recv(4096).startswith(b"HTTP/1.1 200")
    except BlockingIOError:
        return False


def test_a_large_body_is_refused_by_its_announcement_and_never_read(address: tuple[str, int], reader: Reader) -> None:
    assert status_of(address, b" " * LIMIT_BYTES) == 200
    client = http.client.HTTPConnection(*address)
    client.request("POST", "/", headers={"Content-Length": str(LIMIT_BYTES + 1)})
    answer = client.getresponse()
    assert answer.status == 413
    assert str(LIMIT_BYTES).encode() in answer.read()
    client.close()
    assert reader.bodies == [LIMIT_BYTES]


def test_a_body_without_announcement_is_cut_off_where_it_grows_too_large(
    address: tuple[str, int], reader: Reader
) -> None:
    with socket.create_connection(address) as endless:
        endless.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        chunks = b"".join([b"2710\r\n" + b" " * 10_000 + b"\r\n"] * 100)
        with pytest.raises(ConnectionError):
            send_without_end(endless, chunks)
    until(lambda: reader.cut_off == 1)
    assert reader.bodies == []
    assert status_of(address, b"x") == 200


def test_a_body_in_chunks_that_is_too_large_is_refused_in_words(address: tuple[str, int], reader: Reader) -> None:
    """The server answered 500, since its application was cut off before it answered."""
    client = http.client.HTTPConnection(*address, timeout=60)
    client.request("POST", "/", iter([b" " * 10_000] * 60), encode_chunked=True)
    answer = client.getresponse()
    assert (answer.status, answer.read()) == (413, f"The request body exceeds {LIMIT_BYTES} bytes.\n".encode())
    client.close()
    assert reader.bodies == []
    assert status_of(address, b"x") == 200


def send_without_end(client: socket.socket, data: bytes) -> None:
    for _ in range(1_000):
        client.sendall(data)


def status_of(address: tuple[str, int], body: bytes) -> int:
    client = http.client.HTTPConnection(*address, timeout=60)
    try:
        client.request("POST", "/", body)
        return client.getresponse().status
    finally:
        client.close()
