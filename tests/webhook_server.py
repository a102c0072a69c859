"""An HTTP server that takes batches as a careful receiver does: a key that it has seen has no second effect."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Received:
    """The requests of a path."""

    requests: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)  #: key and rows, in order
    batches: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  #: by key
    headers: list[dict[str, str]] = field(default_factory=list)
    #: Returns the status of the next request; a status of 0 is a connection that ends after the rows were taken.
    answer: Callable[[int], int] = lambda count: 200

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for rows in self.batches.values() for row in rows]


class WebhookServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.paths: dict[str, Received] = {}
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def at(self, path: str) -> Received:
        with self.lock:
            return self.paths.setdefault(path, Received())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebhookServer

    def do_POST(self) -> None:
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        received, key = self.server.at(self.path), self.headers["Idempotency-Key"]
        with self.server.lock:
            received.requests.append((key, rows))
            received.headers.append(dict(self.headers))
            status = received.answer(len(received.requests))
            if status in (0, 200):
                assert received.batches.setdefault(key, rows) == rows, "a key was used for other rows"
        if status == 0:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        """The rows that the path has taken."""
        with self.server.lock:
            body = json.dumps(self.server.paths[self.path].rows).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Writes no log."""


@contextmanager
def running_webhook(port: int = 0) -> Iterator[WebhookServer]:
    with WebhookServer(port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
