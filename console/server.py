"""The web server: waitress, whose threads each keep a connection to Postgres.

The main thread receives each request whole and sends what a response has buffered, so a slow client occupies no
thread. Requests beyond the number of threads wait. SIGTERM ends the server; requests under way have 5 s to end.

The upload of a package has limits of its own for its body and its time. The application authorises it before its body
is received (`console.uploads`). Then it takes a place: the number of uploads is limited, of all users and of each, and
with it the size of temporary files. The body must arrive at a least rate, so a slow client does not keep its place.
"""

import argparse
import signal
import socket
import sys
import time
from contextlib import suppress
from copy import copy
from io import BytesIO
from typing import Any, Final

from django.conf import settings
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import create_server
from waitress.task import WSGITask
from waitress.utilities import Error, InternalServerError, RequestEntityTooLarge

from console.uploads import UPLOAD_PATH, UPLOADER
from runtime.io.package_archive import MAX_ARCHIVE_BYTES

CONNECTIONS: Final = 900  #: below the usual limit of 1,024 open files
TIMEOUT_S: Final = 20  #: for a whole request, and for a connection that is idle
_CLEANUP_S: Final = 1
MAX_UPLOADS: Final = 8  #: at a time, whose bodies lie in temporary files
MAX_USER_UPLOADS: Final = 2  #: of a user at a time
_UPLOAD_S: Final = 300  #: for the largest package
MIN_BYTES_PER_S: Final = MAX_ARCHIVE_BYTES // _UPLOAD_S  #: 1.8 Mbit/s, beside the timeout of any other request
#: Bytes that a response may have buffered before its thread waits for the client. From 1 MiB on they lie in a file.
_RESPONSE_BYTES: Final = 1 << 30


class TooManyUploads(Error):
    code = 503
    reason = "Service Unavailable"


class HeadAnswer(Error):
    """The answer of the application to the head of an upload."""

    def __init__(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        self._response = status, headers, body

    def to_response(self, ident: str | None = None) -> tuple[str, list[tuple[str, str]], bytes]:
        return self._response


class LimitedRequest(HTTPRequestParser):
    """A request whose path decides how large its body may be."""

    adj: Any
    expect_continue: bool
    is_upload = False
    authorisation: "Authorisation | None" = None  #: of an upload whose body did not arrive with its head
    uploader: object = None  #: the user who has taken a place
    _expects_continue = False
    _began_at = 0.0  #: time at which the body may be sent

    def parse_header(self, header_plus: bytes) -> None:
        super().parse_header(header_plus)
        if (self.command, self.path) != ("POST", UPLOAD_PATH):
            return
        self.is_upload = True
        self.adj = copy(self.adj)
        self.adj.max_request_body_size = MAX_ARCHIVE_BYTES + 1
        self._expects_continue, self.expect_continue = self.expect_continue, False

    def received(self, data: bytes) -> int:
        consumed: int = super().received(data)
        if isinstance(self.error, RequestEntityTooLarge):
            self.error.body = f"The request body exceeds {self.adj.max_request_body_size - 1} bytes."
        return consumed

    def begin_body(self, uploader: object) -> None:
        """Receives the rest of the upload."""
        self.uploader, self._began_at, self.expect_continue = uploader, time.time(), self._expects_continue

    def end_without_body(self, answer: Error) -> None:
        """Answers the upload by its head alone."""
        self.close()
        self.body_rcv, self.error, self.completed = None, answer, True

    @property
    def paced_activity(self) -> float:
        """The time of the last activity of an upload, as if its body had arrived no faster than it must."""
        return min(time.time(), self._began_at + float(self.body_bytes_received) / MIN_BYTES_PER_S)


class Authorisation:
    """A task of the server's threads: asks the application, by the head of an upload, whether its user may upload."""

    def __init__(self, channel: "DeadlineChannel", request: LimitedRequest) -> None:
        self._channel, self._request = channel, request
        self.uploader: object = None
        self.answer: Error = InternalServerError("The server encountered an unexpected internal server error")
        self.is_over = False

    def service(self) -> None:
        environ = WSGITask(self._channel, self._request).get_environment()
        environ |= {"wsgi.input": BytesIO(), "CONTENT_LENGTH": "0", UPLOADER: None}
        heads: list[tuple[str, list[tuple[str, str]]]] = []
        try:
            chunks = self._channel.server.application(
                environ, lambda status, headers, *_: heads.append((status, headers))
            )
            body = b"".join(chunks)
            if hasattr(chunks, "close"):
                chunks.close()
            self.answer = HeadAnswer(*heads[-1], body)
            self.uploader = environ[UPLOADER]
        finally:
            self.is_over = True
            self._channel.server.pull_trigger()

    def cancel(self) -> None:
        self._channel.cancel()


class DeadlineChannel(HTTPChannel):
    """A connection that is idle while a request is incomplete: further bytes of the request do not extend the timeout.

    waitress counts each received byte as activity, so a client could hold a connection forever (slow loris).

    An upload whose head is complete is read further only once it is authorised and has a place. One that is refused is
    answered at once. The rest of its body is discarded: with unread bytes, the client would not see the answer. More
    than a package may have cuts the client off.
    """

    last_activity: float
    close_when_flushed: bool
    request: LimitedRequest | None
    _is_refused = False  #: an upload; the connection ends with its answer
    _is_draining = False  #: the answer is sent
    _drained_bytes = 0

    def parser_class(self, adjustments: Any) -> LimitedRequest:
        return LimitedRequest(adjustments)

    @property
    def uploaders(self) -> list[object]:
        """The users of the uploads whose bodies the connection holds, complete or not."""
        requests = [request for request in (self.request, *self.requests) if request is not None]
        return [request.uploader for request in requests if request.uploader is not None]

    def readable(self) -> bool:
        if self._is_draining:
            return not self.will_close
        request = self.request
        if request is not None and request.is_upload and request.uploader is None and not self._gives_place(request):
            return False
        return bool(super().readable())

    def handle_read(self) -> None:
        if self._is_draining:
            with suppress(OSError):
                self._drained_bytes += len(self.recv(self.adj.recv_bytes))  # it closes the connection at its end
            if self._drained_bytes > MAX_ARCHIVE_BYTES:
                self.handle_close()
            return
        request, last_activity = self.request, self.last_activity
        super().handle_read()
        if self.request is None:
            return
        if self.request.uploader is not None:
            self.last_activity = self.request.paced_activity
        elif request is not None:
            self.last_activity = last_activity

    def handle_write(self) -> None:
        if not self._is_refused or not self.close_when_flushed or self.will_close:
            super().handle_write()
            return
        self._flush_exception(self._flush_some)
        if not self.total_outbufs_len and not self.will_close:
            self.close_when_flushed, self._is_draining = False, True
            with suppress(OSError):  # the client is gone
                self.socket.shutdown(socket.SHUT_WR)

    def _gives_place(self, request: LimitedRequest) -> bool:
        """Whether an upload has a place now. Its authorisation is asked for once; without it the upload is refused."""
        if request.authorisation is None:
            request.authorisation = Authorisation(self, request)
            self.server.add_task(request.authorisation)
        if not request.authorisation.is_over:
            return False
        uploader = request.authorisation.uploader
        refusal = request.authorisation.answer if uploader is None else self._shortage(uploader)
        if refusal is not None:
            self._refuse(request, refusal)
            return False
        request.begin_body(uploader)
        self.last_activity = request.paced_activity
        with self.requests_lock:
            if request.expect_continue and not self.requests:
                self.send_continue()
        return True

    def _shortage(self, uploader: object) -> Error | None:
        """Why there is no place for an upload of a user; None if there is."""
        uploaders = [each for channel in self.server.active_channels.values() for each in channel.uploaders]
        if uploaders.count(uploader) >= MAX_USER_UPLOADS:
            return TooManyUploads(f"You are uploading {MAX_USER_UPLOADS} packages; try again.")
        if len(uploaders) >= MAX_UPLOADS:
            return TooManyUploads(f"{MAX_UPLOADS} packages are being uploaded; try again.")
        return None

    def _refuse(self, request: LimitedRequest, answer: Error) -> None:
        self._is_refused = True
        request.end_without_body(answer)
        with self.requests_lock:
            self.requests.append(request)
            self.request = None
            if len(self.requests) == 1:
                self.server.add_task(self)


def serve(application: Any, listener: socket.socket, timeout_s: int = TIMEOUT_S) -> None:
    """Serves `application` at `listener` until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    # Of connections whose client reads nothing: waitress closes a connection only once it can be written to.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_s * 1000)
    server = create_server(
        application,
        sockets=[listener],
        threads=settings.WEIR_WEB_THREADS,
        connection_limit=CONNECTIONS,
        channel_timeout=timeout_s,
        cleanup_interval=_CLEANUP_S,
        max_request_body_size=settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1,  # the first size that is refused
        outbuf_high_watermark=_RESPONSE_BYTES,
        asyncore_use_poll=True,
        clear_untrusted_proxy_headers=False,  # Django and DRF judge them (DJANGO_HTTPS, WEIR_NUM_PROXIES)
        ident=None,
    )
    server.channel_class = DeadlineChannel
    server.run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m console.server", description="The web server of the console.")
    parser.add_argument("--fd", type=int, help="a listening socket that the parent process holds")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    from console.wsgi import application  # sets up Django

    address = (arguments.host, arguments.port)
    serve(application, socket.create_server(address) if arguments.fd is None else socket.socket(fileno=arguments.fd))


if __name__ == "__main__":
    main()
