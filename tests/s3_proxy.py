"""A proxy before an S3 server: it loses replies, gives answers of its own, is slow, and stalls."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from tests.s3 import S3Server
from tests.stalls import Stall


class Fault(Enum):
    """A client repeats a request by itself after the first three, `ONCE_MORE`."""

    LOST_REQUEST = "the connection ends before the server has the request"
    LOST_REPLY = "the server serves the request, and the connection ends before the reply"
    UNAVAILABLE = "the answer is 503, and the server has no request"
    FORGOTTEN = "the server serves the request, and the answer is that it does not know the upload"
    SLOW = "request and reply take `pause_s` per `SLOW_BYTES`"


SLOW_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Answer:
    """An answer of the proxy, or of a gateway in its place. The server has no request."""

    status: int
    content: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def error(cls, status: int, code: str) -> Answer:
        return cls(status, f"<Error><Code>{code}</Code><Message>of the proxy</Message></Error>".encode())

    @classmethod
    def refused_key(cls, key: str, code: str) -> Answer:
        """To a deletion of several objects."""
        error = f"<Error><Key>{key}</Key><Code>{code}</Code><Message>of the proxy</Message></Error>"
        return cls(200, f"<DeleteResult>{error}</DeleteResult>".encode())


ONCE_MORE = (Fault.LOST_REQUEST, Fault.LOST_REPLY, Fault.UNAVAILABLE)


@dataclass
class Faults:
    """What happens to the requests. `rule` gets the method and the path with its query."""

    rule: Callable[[str, str], Fault | Answer | None] = lambda method, path: None
    stall: Stall = field(default_factory=Stall)  #: of all replies
    pause_s: float = 1  #: of a slow request, per `SLOW_BYTES`
    requests: Counter[str] = field(default_factory=Counter)  #: by method; a GET of a listing counts as LIST
    without_md5: list[str] = field(default_factory=list)  #: paths of requests without a `Content-MD5`

    def once(self, method: str, fault: Fault | Answer) -> None:
        """The next request of this method has the fault, later ones have none."""
        left = [fault]
        self.rule = lambda each, path: left.pop() if each == method and left else None


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, server: S3Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind, self.faults, self.lock = server.port, Faults(), threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy

    def _serve(self) -> None:
        with self.server.lock:
            self.server.faults.requests["LIST" if "list-type=" in self.path else self.command] += 1
            fault = self.server.faults.rule(self.command, self.path)
            if "Content-MD5" not in self.headers:
                self.server.faults.without_md5.append(self.path)
        pause_s = self.server.faults.pause_s if fault is Fault.SLOW else 0
        is_chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        nbytes = int(self.headers.get("Content-Length", 0))
        body = list(self._chunks()) if is_chunked else b"".join(self._pieces(nbytes, pause_s))
        if isinstance(fault, Answer):
            self._answer(fault.status, [*fault.headers], fault.content)
            return
        if fault is Fault.UNAVAILABLE:
            self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
            return
        if fault is not Fault.LOST_REQUEST:
            connection = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=60)
            headers = dict(self.headers)  # `Host` is part of the signature
            connection.request(self.command, self.path, body, headers, encode_chunked=is_chunked)
            reply = connection.getresponse()
            content = reply.read()
            connection.close()
        self.server.faults.stall.wait()
        if fault is Fault.FORGOTTEN:
            self._answer(404, [], b"<Error><Code>NoSuchUpload</Code></Error>")
        elif fault in (None, Fault.SLOW):
            with suppress(ConnectionError):  # the client waits no longer
                self._answer(reply.status, reply.getheaders(), content, pause_s)
        else:
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - names of http.server

    def _chunks(self) -> Iterator[bytes]:
        """The body of a request without a length, as clients of the AWS SDK send it (RFC 9112, 7.1)."""
        while nbytes := int(self.rfile.readline().partition(b";")[0], 16):
            yield self.rfile.read(nbytes)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass

    def _pieces(self, nbytes: int, pause_s: float) -> Iterator[bytes]:
        """The body of the request."""
        for start in range(0, nbytes, SLOW_BYTES):
            time.sleep(pause_s)
            yield self.rfile.read(min(SLOW_BYTES, nbytes - start))

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, pause_s: float = 0) -> None:
        self.send_response(status)
        names = {name.lower() for name, _ in headers}
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        if "content-length" not in names:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        for start in range(0, len(content), SLOW_BYTES):
            self.wfile.write(content[start : start + SLOW_BYTES])
            time.sleep(pause_s)

    def log_message(self, format: str, *arguments: object) -> None:
        """Prints nothing."""


@contextmanager
def faulty_proxy(server: S3Server) -> Iterator[tuple[int, Faults]]:
    """The port of a proxy, and its faults."""
    with _Proxy(server) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        yield proxy.server_address[1], proxy.faults
        proxy.shutdown()
        thread.join()
