"""Attacks on the real web server: slow clients, bodies that are too large or have no end, and outages of Postgres."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest
from django.urls import reverse

from console.accounts.tokens import token_digest
from console.server import MAX_UPLOADS, MAX_USER_UPLOADS, MIN_BYTES_PER_S
from console.settings import DATA_UPLOAD_MAX_MEMORY_SIZE, WEIR_WEB_THREADS
from console.uploads import UPLOAD_PATH
from runtime.io.package_archive import MAX_ARCHIVE_BYTES
from runtime.io.package_cache import package_path
from tests.console.programs.web_server import BODY_BYTES, FILE_BYTES, THREADS
from tests.console.world import ROOT, World
from tests.waiting import until

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


class Server:
    """A process of the web server. The test holds its listening socket, as the supervisor of a stack does."""

    def __init__(self, listener: socket.socket, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self.address: tuple[str, int] = listener.getsockname()
        self.process = process
        self.folder = folder

    def connect(self) -> http.client.HTTPConnection:
        host, port = self.address
        return http.client.HTTPConnection(host, port, timeout=60)

    def status(self, path: str = "/", **headers: str) -> int:
        with contextlib.closing(self.connect()) as client:
            client.request("GET", path, headers=headers)
            return client.getresponse().status

    def post(self, body: bytes) -> int:
        with contextlib.closing(self.connect()) as client:
            client.request("POST", "/", body)
            return client.getresponse().status

    def open(self, begin: bytes) -> socket.socket:
        """A connection of a client that has sent `begin` and receives little at a time."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(self.address)
        client.sendall(begin)
        return client

    @property
    def bodies(self) -> list[int]:
        """The lengths of the bodies that the application has read."""
        path = self.folder / "bodies"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


@contextlib.contextmanager
def serving(folder: Path, command: list[str], environment: dict[str, str]) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listener, (folder / "web.log").open("wb") as log:
        listener.set_inheritable(True)
        words = [sys.executable, "-m", *(word.format(fd=listener.fileno()) for word in command)]
        process = subprocess.Popen(
            words, cwd=ROOT, env={**os.environ, **environment}, pass_fds=[listener.fileno()], stdout=log, stderr=log
        )
        try:
            yield Server(listener, process, folder)
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def program(folder: Path, timeout_s: int) -> Iterator[Server]:
    with serving(folder, ["tests.console.programs.web_server", "{fd}", str(folder), str(timeout_s)], {}) as server:
        assert server.status() == 200
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with program(tmp_path, timeout_s=60) as server:
        yield server


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Server]:
    with program(tmp_path, timeout_s=1) as server:
        yield server


def is_cut_off(client: socket.socket, byte: bytes) -> bool:
    """Sends one more byte, as a slow client does."""
    client.setblocking(False)
    try:
        client.send(byte)
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


# ---------------------------------------------------------------- slow clients


@pytest.mark.parametrize(
    ("begin", "byte"),
    [
        pytest.param(b"", b"G", id="request line"),
        pytest.param(HEAD + b"X-Slow: ", b"x", id="header"),
        pytest.param(HEAD + b"Content-Length: 40000\r\n\r\n", b"x", id="body"),
    ],
)
def test_requests_that_arrive_byte_by_byte_hold_no_thread_and_are_cut_off(
    hasty: Server, begin: bytes, byte: bytes
) -> None:
    """Slow loris: more bytes do not move the deadline, and others are answered meanwhile."""
    with contextlib.ExitStack() as clients:
        slow = [clients.enter_context(hasty.open(begin + byte)) for _ in range(2 * THREADS)]
        assert hasty.post(b"x") == 200
        until(lambda: sum(is_cut_off(client, byte) for client in slow) == len(slow))
    assert hasty.post(b"x") == 200
    assert hasty.bodies == [0, 1, 1]


def test_a_connection_may_ask_again_and_is_cut_off_when_it_begins_and_does_not_end(hasty: Server) -> None:
    """The deadline is of one request, not of the connection."""
    with hasty.open(HEAD + b"Content-Length: 1\r\n\r\nx") as slow:
        assert slow.recv(4096).startswith(b"HTTP/1.1 200")
        slow.sendall(HEAD + b"X-Slow: ")
        until(lambda: is_cut_off(slow, b"x"))


def test_clients_that_do_not_read_their_answers_hold_no_thread(server: Server) -> None:
    request = b"GET /file HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with contextlib.ExitStack() as clients:
        slow = [clients.enter_context(server.open(request)) for _ in range(2 * THREADS)]
        for client in slow:
            assert client.recv(8) == b"HTTP/1.1"
        assert server.status() == 200
        with slow[0].makefile("rb") as answer:
            assert len(answer.read()) > FILE_BYTES, "nothing of it is lost"


def test_a_client_that_never_reads_is_cut_off(hasty: Server) -> None:
    with hasty.open(b"GET /file HTTP/1.1\r\nHost: localhost\r\n\r\n") as client:
        assert client.recv(8) == b"HTTP/1.1"
        until(lambda: connections(hasty) == 0)


def connections(server: Server) -> int:
    """How many accepted connections the process holds."""
    port = f":{server.address[1]:04X} "
    established = [line for line in Path("/proc/net/tcp").read_text().splitlines() if line.split()[3] == "01"]
    return sum(line.split()[1].endswith(port.strip()) for line in established)


def test_more_requests_than_threads_wait(server: Server) -> None:
    def ask() -> bytes:
        with contextlib.closing(server.connect()) as client:
            client.request("GET", "/wait")
            return client.getresponse().read()

    with ThreadPoolExecutor(3 * THREADS) as clients:
        answers = [clients.submit(ask) for _ in range(3 * THREADS)]
        until(lambda: connections(server) == 3 * THREADS and len(server.bodies) == 1 + THREADS)
        assert not any(answer.done() for answer in answers)
        (server.folder / "go").touch()
        assert [int(answer.result()) for answer in answers] == [THREADS] * len(answers)


def test_a_request_under_way_is_answered_when_the_server_stops(server: Server) -> None:
    with contextlib.closing(server.connect()) as client:
        client.request("GET", "/wait")
        until(lambda: len(server.bodies) == 2)
        server.process.send_signal(signal.SIGTERM)
        (server.folder / "go").touch()
        assert client.getresponse().status == 200
    assert server.process.wait(60) == 0


# ---------------------------------------------------------------- bodies and headers


def test_a_large_body_is_refused_by_its_announcement_and_never_read(server: Server) -> None:
    assert server.post(b" " * BODY_BYTES) == 200
    with contextlib.closing(server.connect()) as client:
        client.request("POST", "/", headers={"Content-Length": str(BODY_BYTES + 1)})
        assert client.getresponse().status == 413
    assert server.bodies == [0, BODY_BYTES]


def test_a_body_without_announcement_is_cut_off_where_it_grows_too_large(server: Server) -> None:
    chunks = b"".join([b"2710\r\n" + b" " * 10_000 + b"\r\n"] * 100)
    with server.open(HEAD + b"Transfer-Encoding: chunked\r\n\r\n") as endless, pytest.raises(ConnectionError):
        send_without_end(endless, chunks)
    assert server.post(b"x") == 200
    assert server.bodies == [0, 1]


def send_without_end(client: socket.socket, data: bytes) -> None:
    for _ in range(1_000):
        client.sendall(data)


AUTHOR = {"X-User": "author"}


def _upload_head(size: int, user: str = "author") -> bytes:
    return (
        HEAD.replace(b" / ", f" {UPLOAD_PATH} ".encode()) + f"X-User: {user}\r\nContent-Length: {size}\r\n\r\n".encode()
    )


def _post_package(server: Server, size: int, **headers: str) -> tuple[int, bytes]:
    with contextlib.closing(server.connect()) as client:
        client.request("POST", UPLOAD_PATH, b" " * size, {"Content-Type": "application/zip", **AUTHOR, **headers})
        answer = client.getresponse()
        return answer.status, answer.read()


def test_the_body_of_a_package_has_a_limit_of_its_own(server: Server) -> None:
    assert _post_package(server, 10 * BODY_BYTES)[0] == 200
    with contextlib.closing(server.connect()) as client:
        client.request("POST", UPLOAD_PATH, headers={**AUTHOR, "Content-Length": str(MAX_ARCHIVE_BYTES + 1)})
        answer = client.getresponse()
        assert answer.status == 413
        assert f"The request body exceeds {MAX_ARCHIVE_BYTES} bytes." in answer.read().decode()
    assert server.bodies == [0, 10 * BODY_BYTES]


@pytest.mark.parametrize(
    ("method", "path"), [("POST", UPLOAD_PATH + "x/"), ("POST", "//" + UPLOAD_PATH), ("PUT", UPLOAD_PATH)]
)
def test_no_other_request_has_the_limit_of_a_package(server: Server, method: str, path: str) -> None:
    with contextlib.closing(server.connect()) as client:
        client.request(method, path, headers={"Content-Length": str(BODY_BYTES + 1)})
        answer = client.getresponse()
        assert answer.status == 413
        assert f"The request body exceeds {BODY_BYTES} bytes." in answer.read().decode()


def _post_of(user: str, server: Server) -> tuple[int, bytes]:
    return _post_package(server, BODY_BYTES, **{"X-User": user})


def test_an_upload_has_time_for_its_bytes_and_is_cut_off_where_they_come_too_slowly(hasty: Server) -> None:
    """The program's timeout is 1 s. A body at the least rate takes longer; a byte at a time does not keep its place."""
    part = b" " * (MIN_BYTES_PER_S // 2)
    with hasty.open(_upload_head(6 * len(part))) as upload, hasty.open(_upload_head(9)) as slow:
        for _ in range(6):
            upload.sendall(part)
            time.sleep(0.5)
        assert upload.recv(4096).startswith(b"HTTP/1.1 200")
        assert is_cut_off(slow, b"x")
    assert hasty.bodies == [0, 6 * len(part)]


def test_a_client_that_may_not_upload_is_answered_by_its_head_and_takes_no_place(server: Server) -> None:
    head = _upload_head(MAX_ARCHIVE_BYTES, "").replace(b"X-User: \r\n", b"")
    with contextlib.ExitStack() as clients:
        for _ in range(2 * MAX_UPLOADS):
            client = clients.enter_context(server.open(head))
            assert client.recv(4096).startswith(b"HTTP/1.1 401")
        assert _post_package(server, 10 * BODY_BYTES)[0] == 200
    assert server.bodies == [0, 10 * BODY_BYTES]


def test_a_client_that_sends_on_sees_why_its_upload_is_refused(server: Server) -> None:
    """The server discards the rest: a connection that is reset would lose the answer."""
    with contextlib.closing(server.connect()) as client:
        client.request("POST", UPLOAD_PATH, b" " * (8 * 1024 * 1024))
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (401, b"Who are you?")
    until(lambda: connections(server) == 0)


def test_an_upload_that_is_not_authorised_for_a_moment_has_that_answer(server: Server) -> None:
    """A further question might be answered, and an empty body be refused for good."""
    with contextlib.closing(server.connect()) as client:
        client.request("POST", UPLOAD_PATH, b" " * BODY_BYTES, {"X-User": "away"})
        answer = client.getresponse()
        assert (answer.status, answer.headers["Retry-After"], answer.read()) == (503, "5", b"Later.")
    assert server.bodies == [0]


def test_a_client_that_sends_more_than_a_package_after_its_refusal_is_cut_off(server: Server) -> None:
    with server.open(_upload_head(MAX_ARCHIVE_BYTES, "away")) as client, pytest.raises(ConnectionError):
        client.sendall(b" " * (2 * MAX_ARCHIVE_BYTES))


def test_a_client_that_waits_for_a_signal_gets_it_once_it_is_authorised(server: Server) -> None:
    head = _upload_head(3)[:-2] + b"Expect: 100-continue\r\n\r\n"
    with server.open(head) as client, server.open(head.replace(b"X-User: author\r\n", b"")) as refused:
        assert client.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"xxx")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        assert refused.recv(4096).startswith(b"HTTP/1.1 401")


def test_uploads_of_a_user_and_of_all_are_limited(server: Server) -> None:
    with contextlib.ExitStack() as clients:
        slow = []
        for number in range(MAX_UPLOADS):
            user = f"author{number // MAX_USER_UPLOADS}"
            slow.append(clients.enter_context(server.open(_upload_head(9, user))))
            if number == 1:
                until(lambda: b"You are uploading 2 packages" in _post_of("author0", server)[1])
                assert _post_package(server, BODY_BYTES)[0] == 200
        until(lambda: b"8 packages are being uploaded" in _post_package(server, BODY_BYTES)[1])
        assert _post_package(server, BODY_BYTES)[0] == 503
        assert server.post(b"x") == 200
        slow[0].sendall(b" " * 9)
        assert slow[0].recv(4096).startswith(b"HTTP/1.1 200")
        until(lambda: _post_package(server, BODY_BYTES)[0] == 200)  # the answer goes out before its place is free


def test_headers_of_a_proxy_reach_the_application(server: Server) -> None:
    """DJANGO_HTTPS and WEIR_NUM_PROXIES decide whether they count."""
    with contextlib.closing(server.connect()) as client:
        client.request("GET", "/", headers={"X-Forwarded-Proto": "https"})
        assert client.getresponse().headers["X-Seen-Proto"] == "https"


# ---------------------------------------------------------------- Postgres


@pytest.fixture
def console(tmp_path: Path, place: World) -> Iterator[Server]:
    with serving(tmp_path, ["console.server", "--fd", "{fd}"], dict(place.environment)) as server:
        assert server.status("/livez") == 200
        yield server


def ask_database(server: Server) -> int:
    """401, by a query for the token."""
    return server.status("/api/v1/jobs/", Authorization="Bearer unknown")


def backends(place: World) -> set[int]:
    """The connections whose last query was for a token."""
    activity = (
        """SELECT pid FROM pg_stat_activity WHERE query LIKE '%%"weir_api_token"%%' AND pid <> pg_backend_pid()"""
    )
    return {row["pid"] for row in place.sql(activity)}


def test_threads_keep_their_connections_to_postgres(console: Server, place: World) -> None:
    many = 4 * WEIR_WEB_THREADS
    with ThreadPoolExecutor(many) as clients:
        assert set(clients.map(lambda _: ask_database(console), range(many))) == {401}
    pids = backends(place)
    assert 1 <= len(pids) <= WEIR_WEB_THREADS
    assert {ask_database(console) for _ in range(many)} == {401}
    assert pids <= backends(place)
    assert len(backends(place)) <= WEIR_WEB_THREADS


def test_no_request_fails_after_a_restart_of_postgres(console: Server, place: World) -> None:
    """All connections are dead then."""
    assert {ask_database(console) for _ in range(2 * WEIR_WEB_THREADS)} == {401}
    place.stop_postgres()
    assert ask_database(console) == 503
    place.start_postgres()
    assert {ask_database(console) for _ in range(2 * WEIR_WEB_THREADS)} == {401}


@pytest.fixture
def uploader(place: World) -> dict[str, str]:
    """Headers of a user who may upload packages."""
    place.sql(
        """
        WITH author AS (
            INSERT INTO weir_user (username, password, is_superuser, is_staff, is_active, first_name, last_name, email,
                                   date_joined)
            VALUES ('author', '', true, false, true, '', '', '', now()) ON CONFLICT DO NOTHING RETURNING id)
        INSERT INTO weir_api_token (user_id, digest, hint, scopes) SELECT id, %s, 'weir_', '{define}' FROM author
        """,
        token_digest("weir_author"),
    )
    return {"Authorization": "Bearer weir_author"}


def test_a_package_above_the_limit_of_other_bodies_is_stored(
    console: Server, place: World, uploader: dict[str, str]
) -> None:
    data = BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("large.bin", os.urandom(2 * DATA_UPLOAD_MAX_MEMORY_SIZE))
    headers = {**uploader, "Content-Type": "application/zip", "Idempotency-Key": "once"}
    with contextlib.closing(console.connect()) as client:
        client.request("POST", UPLOAD_PATH, data.getvalue(), headers)
        answer = client.getresponse()
        row = json.loads(answer.read())
    assert answer.status == 202, row
    assert (place.var / "storage" / package_path(row["digest"])).read_bytes() == data.getvalue()


def test_an_upload_without_a_login_is_refused_by_its_head_through_the_whole_console(
    console: Server, uploader: dict[str, str]
) -> None:
    for headers in ({}, {"Authorization": "Bearer weir_other"}):
        with contextlib.closing(console.connect()) as client:
            client.request("POST", UPLOAD_PATH, headers={**headers, "Content-Length": str(MAX_ARCHIVE_BYTES)})
            assert client.getresponse().status == 401
    with contextlib.closing(console.connect()) as client:
        client.request("POST", UPLOAD_PATH, headers={**uploader, "Content-Length": "3"})
        until(lambda: _statuses(console)[-1] == 204)
        assert client.sock is not None
        client.sock.sendall(b"zip")
        assert client.getresponse().status == 415, "the application has the body"


def _statuses(console: Server) -> list[int]:
    lines = [json.loads(line) for line in (console.folder / "web.log").read_text().splitlines()]
    return [line["status"] for line in lines if line["event"] == "request"]


def test_a_sign_in_has_no_larger_body(console: Server) -> None:
    with contextlib.closing(console.connect()) as client:
        client.request("POST", "/api/v1/auth/token/", headers={"Content-Length": str(DATA_UPLOAD_MAX_MEMORY_SIZE + 1)})
        answer = client.getresponse()
        assert answer.status == 413
        assert f"The request body exceeds {DATA_UPLOAD_MAX_MEMORY_SIZE} bytes." in answer.read().decode()


def test_the_path_of_an_upload_is_that_of_the_route() -> None:
    assert reverse("api:packages") == UPLOAD_PATH


def test_each_request_is_a_line_of_the_log(console: Server) -> None:
    assert ask_database(console) == 401
    lines = [json.loads(line) for line in (console.folder / "web.log").read_text().splitlines()]
    requests = [(line["method"], line["path"], line["status"]) for line in lines if line["event"] == "request"]
    assert requests == [("GET", "/livez", 200), ("GET", "/api/v1/jobs/", 401)]
