"""The web server with two threads and an application in place of Django.

Arguments: the descriptor of its socket, a folder, and the timeout of a connection in seconds. `/wait` answers once the
folder has a file `go`, with the greatest number of requests at a time. Other answers repeat the length of the body.
A request counts as active before its line in the file `bodies`. An upload of the user in `X-User` is authorised, unless
the user is `away`: the head alone is answered by 503.
"""

import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from django.conf import settings

from console.uploads import UPLOADER

THREADS = 2
BODY_BYTES = 50_000
FILE_BYTES = 16 * 1024 * 1024  #: more than the buffers of a connection take


class Application:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._active = self._most = 0

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        user = environ.get("HTTP_X_USER")
        if UPLOADER in environ:
            return self._authorise(user, environ, start_response)
        body, waits = environ["wsgi.input"].read(), environ["PATH_INFO"] == "/wait"
        if waits:
            self._begin()
        with (self._folder / "bodies").open("a") as bodies:
            bodies.write(f"{len(body)}\n")
        start_response("200 OK", [("X-Seen-Proto", environ.get("HTTP_X_FORWARDED_PROTO", ""))])
        if environ["PATH_INFO"] == "/file":
            return self._file()
        return [self._wait() if waits else str(len(body)).encode()]

    def _authorise(self, user: str | None, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if user is None:
            start_response("401 Unauthorized", [])
            return [b"Who are you?"]
        if user == "away":
            start_response("503 Service Unavailable", [("Retry-After", "5"), ("Content-Length", "6")])
            return [b"Later."]
        environ[UPLOADER] = user
        start_response("204 No Content", [])
        return []

    def _file(self) -> Iterator[bytes]:
        for _ in range(FILE_BYTES // 65_536):
            yield b" " * 65_536

    def _begin(self) -> None:
        with self._lock:
            self._active += 1
            self._most = max(self._most, self._active)

    def _wait(self) -> bytes:
        while not (self._folder / "go").exists():
            time.sleep(0.02)
        with self._lock:
            self._active -= 1
            return str(self._most).encode()


if __name__ == "__main__":
    from console.server import serve

    settings.configure(WEIR_WEB_THREADS=THREADS, DATA_UPLOAD_MAX_MEMORY_SIZE=BODY_BYTES)
    descriptor, folder, timeout_s = sys.argv[1:]
    serve(Application(Path(folder)), socket.socket(fileno=int(descriptor)), int(timeout_s))
