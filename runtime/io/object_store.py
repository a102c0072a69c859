"""`SnapshotStore` below a prefix of a bucket, by obstore.

- The library runs threads of its own, which do not survive a fork. So each process makes its clients itself, with the
  first call. A process that was forked from a user of the library is refused, since its calls would never return.
- Endpoint, region and credentials come from the environment of the host (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, …)
  or from its instance role. A URI contains none of them.
- Each request is repeated for a while after a broken connection or a status 5xx. After that the error is an outage. A
  request must be sent and answered within `READ_TIMEOUT_S`; then no pause of the reply may be longer.
- An object larger than `PART_BYTES` is uploaded in parts. It appears with the last part or not at all. The parts of a
  killed writer stay invisible in the bucket until a lifecycle rule of the bucket aborts the upload.
- A larger object is also read in parts, each by a request of its own: `CALL_TIMEOUT_S` bounds a part only.
"""

from __future__ import annotations  # `list` is also a method here

import io
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, Final

from runtime import s3
from runtime.errors import CorruptState, EnvironmentFailure, TargetAway
from runtime.io.filesystem import path_below_root
from runtime.libraries import import_library
from runtime.s3 import PART_BYTES, READ_TIMEOUT_S, RETRY_TIMEOUT_S

CALL_TIMEOUT_S: Final = 300  #: of a request, reply included; a stall ends it earlier
_CONCURRENT_PARTS: Final = 4  #: a line of 5 Mbit/s sends them in `READ_TIMEOUT_S`
_MAX_ERROR_CHARACTERS: Final = 300

_DEBUG_TEXT: Final = "\n\nDebug source:"  #: of the library; follows its message
_READ: Final = "read"
_RANGE_STATUS: Final = 416
_INSTANCE_ROLE_PATH: Final = "/latest/api/token"  #: of the request for the credentials of an instance role
_users: set[int] = set()  #: the process that has made clients; a fork inherits the entry


class ObjectStore:
    """Implements `ports.SnapshotStore`. Picklable: a process makes its client with the first call.

    Args:
        uri: `s3://bucket/prefix`, checked by `io.store.open_store`.
    """

    concurrent_reads: Final = 4

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def put(self, path: str, data: Iterable[bytes]) -> None:
        key, chunks = _key(path), iter(data)
        head = b"".join(_take(chunks, PART_BYTES))
        with self._errors(path, "written"):
            if len(head) < PART_BYTES:
                self._library.put(self._client, key, head, use_multipart=False)
            else:
                parts = {"chunk_size": PART_BYTES, "max_concurrency": _CONCURRENT_PARTS, "use_multipart": True}
                self._library.put(self._client, key, itertools.chain([head], _read_apart(chunks)), **parts)

    def create(self, path: str, data: bytes) -> bool:
        key = _key(path)
        try:
            with self._errors(path, "created"):
                try:
                    self._library.put(self._client, key, data, mode="create", use_multipart=False)
                except self._exceptions.AlreadyExistsError as error:  # perhaps created here, and the reply was lost
                    return self._is_equal(path, data, error)
        except TargetAway:
            if not self._holds(path, data):
                raise
        return True

    def get(self, path: str) -> bytes:
        key = _key(path)
        with self._errors(path, _READ):
            result = self._library.get(self._client, key)
            nbytes = result.meta["size"]
            if nbytes <= PART_BYTES:
                return bytes(result.bytes())
            del result  # ends its connection
        return self.get_range(path, 0, nbytes)

    def get_range(self, path: str, offset: int, nbytes: int) -> bytes:
        key, content = _key(path), io.BytesIO()  # its value is taken without a copy
        while length := min(nbytes - content.tell(), PART_BYTES):
            if content.write(self._part(path, key, offset + content.tell(), length)) < length:
                break
        return content.getvalue()

    def _part(self, path: str, key: str, offset: int, nbytes: int) -> Any:
        """The bytes of a range, by a single request. Fewer at the end of the object."""
        with self._errors(path, _READ):
            try:
                return self._library.get_range(self._client, key, start=offset, length=nbytes)
            except self._exceptions.BaseError as error:
                if s3.status_of(str(error)) != _RANGE_STATUS:  # the object ends before `offset`
                    raise
                return b""

    def delete(self, paths: Iterable[str]) -> None:
        keys = [_key(path) for path in paths]
        while keys:
            folder = os.path.commonpath([key.rpartition("/")[0] for key in keys])
            place = keys[0] if len(keys) == 1 else f"{folder or '.'} ({len(keys)} objects)"
            with self._errors(place, "deleted"):
                try:
                    self._library.delete(self._client, keys)
                    return
                except self._exceptions.BaseError as error:
                    if s3.error_code_of(str(error)) != s3.MISSING_CODE:
                        raise
                    # Some servers refuse a missing object. Errors of other objects of the same request are unknown.
                    objects = self.sizes(folder and f"{folder}/")
                    remaining = [key for key in keys if key in objects]
                    if len(remaining) == len(keys):
                        raise
            keys = remaining

    def list(self, prefix: str) -> list[str]:
        return sorted(self.sizes(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        folder = prefix.rpartition("/")[0]  # the library lists whole folders
        with self._errors(folder or ".", "listed"):
            pages = self._library.list(self._client, prefix=folder or None)
            return {
                entry["path"]: entry["size"] for page in pages for entry in page if entry["path"].startswith(prefix)
            }

    def size(self, path: str) -> int | None:
        try:
            with self._errors(path, _READ):  # a HEAD has no body, and thus no code that tells a missing object
                return int(self._library.get(self._client, _key(path)).meta["size"])
        except CorruptState:
            return None

    def folders(self) -> Sequence[str]:
        with self._errors(".", "listed"):
            prefixes = self._library.list_with_delimiter(self._client)["common_prefixes"]
            return sorted(prefix.strip("/") for prefix in prefixes)

    def newest_change(self, folder: str) -> float | None:
        with self._errors(folder, "listed"):
            pages = self._library.list(self._client, prefix=folder)
            times = [entry["last_modified"].timestamp() for page in pages for entry in page]
        return max(times, default=None)

    def copy(self, source: str, target: str) -> None:
        with self._errors(f"{source} to {target}", "copied"):
            try:
                self._library.copy(self._client, _key(source), _key(target))
            except (self._exceptions.BaseError, FileNotFoundError) as error:
                if s3.error_code_of(str(error)) == s3.MISSING_CODE:
                    raise CorruptState(source, f"there is no such object in {self._uri}") from None
                raise

    def leftover_files(self) -> Sequence[str]:
        """None: an upload that did not end has no path."""
        return []

    def _holds(self, path: str, data: bytes) -> bool:
        """Whether the object is there now, with this content."""
        try:
            return self.get(path) == data
        except EnvironmentFailure:
            return False

    def _is_equal(self, path: str, data: bytes, conflict: Exception) -> bool:
        """Compares the object that refused a creation. It may be absent: concurrent requests refuse each other too."""
        try:
            return self.get(path) == data
        except CorruptState:
            raise TargetAway(f"{self._uri}/{path} cannot be created: {_cause(str(conflict))}") from conflict

    @contextmanager
    def _errors(self, path: str, action: str) -> Iterator[None]:
        """Turns errors of the library into those of the port."""
        try:
            yield
        except (self._exceptions.BaseError, FileNotFoundError) as error:
            text = str(error).partition(_DEBUG_TEXT)[0]
            if action == _READ and s3.error_code_of(text) == s3.MISSING_CODE:
                raise CorruptState(path, f"there is no such object in {self._uri}") from None
            kind = TargetAway if s3.is_temporary_text(text) else EnvironmentFailure
            raise kind(f"{self._uri}/{path} cannot be {action}: {_cause(text)}") from error

    @property
    def _library(self) -> Any:
        return import_library("obstore", "cloud")

    @property
    def _exceptions(self) -> Any:
        return import_library("obstore.exceptions", "cloud")

    @property
    def _client(self) -> Any:
        _users.add(os.getpid())
        if len(_users) > 1:
            raise EnvironmentFailure(f"{self._uri}: this process was forked from one that uses an object store")
        return _client(self._uri)


@cache
def _client(uri: str) -> Any:
    _check_endpoint()
    return import_library("obstore.store", "cloud").from_url(
        uri,
        client_options={
            "allow_http": True,  # an endpoint `http://` is the choice of the host's administrator
            "connect_timeout": f"{s3.CONNECT_TIMEOUT_S}s",
            "read_timeout": f"{READ_TIMEOUT_S}s",
            "timeout": f"{CALL_TIMEOUT_S}s",
        },
        retry_config={"max_retries": s3.RETRIES, "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S)},
    )


def _key(path: str) -> str:
    return path_below_root(path).as_posix()


def _read_apart(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Reads `chunks` in a thread, one ahead. An iterator that the library calls may not call the library."""
    with ThreadPoolExecutor(1, "upload") as reader:
        ahead = reader.submit(next, chunks, None)
        while (chunk := ahead.result()) is not None:
            ahead = reader.submit(next, chunks, None)
            yield chunk


def _take(chunks: Iterator[bytes], nbytes: int) -> Iterator[bytes]:
    """The first chunks, until they have `nbytes` bytes."""
    taken = 0
    while taken < nbytes and (chunk := next(chunks, None)) is not None:
        taken += len(chunk)
        yield chunk


def _check_endpoint() -> None:
    """Raises EnvironmentFailure for an endpoint that the library would answer by a panic or by lasting errors."""
    if variable := s3.wrong_endpoint():
        raise EnvironmentFailure(f"{variable} is not the URL of a server, such as https://host:8333")


def _cause(text: str) -> str:
    status, code = s3.status_of(text), s3.error_code_of(text)
    cause = f"status {status} {code}" if status and code else text.partition("\n")[0][:_MAX_ERROR_CHARACTERS]
    if _INSTANCE_ROLE_PATH in text:
        return f"the environment has no AWS_ACCESS_KEY_ID, and no instance role answers: {cause}"
    return cause
