"""Receivers of alerts on real sockets: a webhook by HTTP, and a server of SMTP."""

import contextlib
import socketserver
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

SECRET = "a signing secret of the tests"


class Webhook:
    """Collects the requests, and answers each with `status` after `delay_s`."""

    def __init__(self, port: int) -> None:
        self.port, self.status, self.delay_s = port, 204, 0.0
        self.requests: list[tuple[dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/alerts"

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(body) for _, body in self.requests]

    @property
    def events(self) -> list[str]:
        return [message["event"] for message in self.messages]


@contextlib.contextmanager
def webhook() -> Iterator[Webhook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append((dict(self.headers), body))
            time.sleep(receiver.delay_s)
            with contextlib.suppress(OSError):  # the sender may have given up
                self.send_response(receiver.status)
                self.end_headers()

        def log_message(self, *_: Any) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        receiver = Webhook(server.server_address[1])
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield receiver
        finally:
            server.shutdown()


class Mailbox:
    def __init__(self, port: int) -> None:
        self.port = port
        self.mails: list[str] = []


@contextlib.contextmanager
def mailbox() -> Iterator[Mailbox]:
    """A server of SMTP that accepts each mail."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.reply("220 test ESMTP")
            for line in self.rfile:
                verb = line.decode().split()[0].upper()
                if verb == "DATA":
                    self.reply("354 go on")
                    box.mails.append(self.read_mail())
                self.reply("221 bye" if verb == "QUIT" else "250 ok")
                if verb == "QUIT":
                    return

        def read_mail(self) -> str:
            lines = []
            while (line := self.rfile.readline()) != b".\r\n":
                lines.append(line.decode())
            return "".join(lines)

        def reply(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        box = Mailbox(server.server_address[1])
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield box
        finally:
            server.shutdown()
