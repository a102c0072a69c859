"""The web server: waitress, whose threads each keep a connection to Postgres.

The main thread receives each request whole and sends what a response has buffered, so a slow client occupies no
thread. Requests beyond the number of threads wait. SIGTERM ends the server; requests under way have 5 s to end.

The upload of a package has limits of its own for its body and its time. Its body is received before Django checks who
sends it. The number of uploads at a time is therefore limited, and with it the size of temporary files.
"""

import argparse
import signal
import socket
import sys
import time
from copy import copy
from typing import Any, Final

from django.conf import settings
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import create_server
from waitress.utilities import Error, RequestEntityTooLarge

from runtime.io.package_archive import MAX_ARCHIVE_BYTES

CONNECTIONS: Final = 900  #: below the usual limit of 1,024 open files
TIMEOUT_S: Final = 20  #: for a whole request, and for a connection that is idle
_CLEANUP_S: Final = 1
UPLOAD_PATH: Final = "/api/v1/packages/"  #: of `console.api.definitions.Packages`
MAX_UPLOADS: Final = 8  #: at a time, whose bodies lie in temporary files
#: The time of an upload, in timeouts of any other request: 300 s, so the largest package needs 1.8 Mbit/s.
UPLOAD_TIMEOUTS: Final = 15
#: Bytes that a response may have buffered before its thread waits for the client. From 1 MiB on they lie in a file.
_RESPONSE_BYTES: Final = 1 << 30


class TooManyUploads(Error):
    code = 503
    reason = "Service Unavailable"


class LimitedRequest(HTTPRequestParser):
    """A request whose path decides how large its body may be."""

    adj: Any
    is_upload = False

    def __init__(self, adjustments: Any, channels: dict[int, Any]) -> None:
        super().__init__(adjustments)
        self._channels = channels

    def parse_header(self, header_plus: bytes) -> None:
        super().parse_header(header_plus)
        if (self.command, self.path) != ("POST", UPLOAD_PATH):
            return
        self.adj = copy(self.adj)
        self.adj.max_request_body_size = MAX_ARCHIVE_BYTES + 1
        self.is_upload = sum(channel.is_uploading for channel in self._channels.values()) < MAX_UPLOADS
        if not self.is_upload:
            self.error = TooManyUploads(f"{MAX_UPLOADS} packages are being uploaded; try again.")

    def received(self, data: bytes) -> int:
        consumed: int = super().received(data)
        if isinstance(self.error, RequestEntityTooLarge):
            self.error.body = f"The request body exceeds {self.adj.max_request_body_size - 1} bytes."
        elif self.error is not None:
            self.completed = True
        return consumed


class DeadlineChannel(HTTPChannel):
    """A connection that is idle while a request is incomplete: further bytes of the request do not extend the timeout.

    waitress counts each received byte as activity, so a client could hold a connection forever (slow loris).
    """

    last_activity: float

    def parser_class(self, adjustments: Any) -> LimitedRequest:
        return LimitedRequest(adjustments, self.server.active_channels)

    @property
    def is_uploading(self) -> bool:
        """Whether the connection holds the body of an upload, complete or not."""
        return any(request is not None and request.is_upload for request in (self.request, *self.requests))

    def handle_read(self) -> None:
        request, last_activity = self.request, self.last_activity
        was_upload = request is not None and request.is_upload
        super().handle_read()
        if self.request is None:
            return
        if self.request.is_upload and not was_upload:
            self.last_activity = time.time() + (UPLOAD_TIMEOUTS - 1) * self.adj.channel_timeout
        elif request is not None:
            self.last_activity = last_activity


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
