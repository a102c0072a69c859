"""The web server: waitress, whose threads each keep a connection to Postgres.

The main thread receives each request whole and sends what a response has buffered, so a slow client occupies no
thread. Requests beyond the number of threads wait. SIGTERM ends the server; requests under way have 5 s to end.
"""

import argparse
import signal
import socket
import sys
from typing import Any, Final

from django.conf import settings
from waitress.channel import HTTPChannel
from waitress.server import create_server

CONNECTIONS: Final = 900  #: below the usual limit of 1,024 open files
TIMEOUT_S: Final = 20  #: for a whole request, and for a connection that is idle
_CLEANUP_S: Final = 1
#: Bytes that a response may have buffered before its thread waits for the client. From 1 MiB on they lie in a file.
_RESPONSE_BYTES: Final = 1 << 30


class DeadlineChannel(HTTPChannel):
    """A connection that is idle while a request is incomplete: further bytes of the request do not extend the timeout.

    waitress counts each received byte as activity, so a client could hold a connection forever (slow loris).
    """

    last_activity: float

    def handle_read(self) -> None:
        is_incomplete, last_activity = self.request is not None, self.last_activity
        super().handle_read()
        if is_incomplete and self.request is not None:
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
