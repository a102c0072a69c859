"""A file that is written in sequence into a bucket: its parts are uploaded as they fill, and it appears at its end."""

import contextlib
import hashlib
from collections.abc import Sequence
from typing import Any, Final

from runtime.connectors.bucket import Bucket, UploadGone
from runtime.errors import EnvironmentFailure
from runtime.s3 import PART_BYTES

MAX_OPEN_UPLOADS: Final = 20  #: of a writer; each holds a part in memory


class BucketFile:
    """Knows the size of all bytes that were passed to it. Implements what writers of Arrow and Parquet need.

    The object appears by `complete`, or by a completion of the upload in another process (`finish_upload`).
    """

    def __init__(self, bucket: Bucket, name: str) -> None:
        self.size = 0
        self.closed = False
        self.has_md5_etags = True  #: False if the store encrypts by a key of its own
        self._bucket, self.name = bucket, name
        self._buffer = bytearray()
        self._upload: str | None = None
        self._etags: list[str] = []

    def write(self, data: Any) -> int:
        """Appends an object with the buffer protocol. Returns its number of bytes."""
        nbytes = memoryview(data).nbytes
        self._buffer += data
        self.size += nbytes
        while len(self._buffer) >= PART_BYTES:
            self._send(bytes(self._buffer[:PART_BYTES]))
            del self._buffer[:PART_BYTES]
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
            return self._bucket.put(self.name, bytes(self._buffer))
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

    def abandon(self) -> None:
        """Deletes the parts, as far as the store can be reached."""
        self.close()
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
