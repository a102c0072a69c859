"""A file that is written in sequence into a bucket: its parts are uploaded as they fill, and it appears at its end."""

import contextlib
import hashlib
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakSet

from runtime.connectors.bucket import Bucket, UploadGone
from runtime.errors import EnvironmentFailure
from runtime.s3 import PART_BYTES

MAX_OPEN_UPLOADS: Final = 100  #: of a writer
MAX_BUFFERED_BYTES: Final = 160 << 20  #: that wait in memory in the open files of a writer
_PARTS_OF_A_SIZE: Final = 1_000  #: an upload has 10,000 parts or less


def part_bytes(number: int) -> int:
    """The size of a part, numbered from 0. It grows slowly, so that an upload can have 440 GiB."""
    return PART_BYTES * (1 + number // _PARTS_OF_A_SIZE)


class OpenUploads:
    """The files in progress of a writer: their bytes wait in memory until they fill a part."""

    def __init__(self) -> None:
        self._files = WeakSet[BucketFile]()

    def add(self, file: "BucketFile") -> None:
        self._files.add(file)

    @property
    def are_full(self) -> bool:
        """Whether a file must be finished before others grow."""
        return sum(file.buffered_bytes for file in self._files) >= MAX_BUFFERED_BYTES


class BucketFile:
    """A file object, as writers of Arrow and Parquet need it. `size`: number of bytes that were passed to it.

    The object appears by `complete`, or by a completion of the upload in another process (`finish_upload`).
    """

    def __init__(self, bucket: Bucket, name: str, uploads: OpenUploads) -> None:
        self.size = 0
        self.closed = False
        self.has_md5_etags = True  #: False if the store encrypts by a key of its own
        self._bucket, self.name = bucket, name
        self._buffer = bytearray()
        self._upload: str | None = None
        self._etags: list[str] = []
        uploads.add(self)

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def write(self, data: Any) -> int:
        """Appends an object with the buffer protocol. Returns its number of bytes."""
        nbytes = memoryview(data).nbytes
        self._buffer += data
        self.size += nbytes
        while len(self._buffer) >= (limit := part_bytes(len(self._etags))):
            self._send(bytes(self._buffer[:limit]))
            del self._buffer[:limit]
        return nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """A part of less than 5 MiB can only be the last one."""

    def close(self) -> None:
        self.closed = True

    def complete(self) -> str:
        """Makes the object visible, in place of one of this name. Returns its ETag."""
        if self._upload is None:
            etag = self._bucket.put(self.name, bytes(self._buffer))
            self._buffer.clear()
            return etag
        upload, etags = self.finish_upload()
        try:
            return self._bucket.complete(self.name, upload, etags, replaces=True)
        except UploadGone:  # perhaps completed here, and the reply was lost
            stored = self._bucket.find(self.name)
            if stored is None or stored.bytes != self.size:
                raise
            return stored.etag

    def finish_upload(self) -> tuple[str, list[str]]:
        """Uploads the rest as the last part. Returns the id of the upload and the ETags of its parts."""
        if self._buffer or not self._etags:
            self._send(bytes(self._buffer))
            self._buffer.clear()
        assert self._upload is not None, "a part was sent"
        return self._upload, self._etags

    def discard(self) -> None:
        """Deletes the parts, as far as the store can be reached."""
        self.close()
        self._buffer.clear()
        if self._upload is not None:
            with contextlib.suppress(EnvironmentFailure):  # the clean-up before the next attempt aborts it
                self._bucket.abort(self.name, self._upload)

    def _send(self, data: bytes) -> None:
        if self._upload is None:
            self._upload = self._bucket.begin_upload(self.name)
        md5 = hashlib.md5(data, usedforsecurity=False)
        etag = self._bucket.put_part(self.name, self._upload, len(self._etags) + 1, data, md5.digest())
        self.has_md5_etags = self.has_md5_etags and etag == md5.hexdigest()
        self._etags.append(etag)


def upload_etag(etags: Sequence[str]) -> str:
    """The ETag of an object of several parts, as S3 computes it: a digest of the digests of the parts."""
    digests = b"".join(bytes.fromhex(etag) for etag in etags)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(etags)}"
