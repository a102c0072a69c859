"""A prefix of a bucket as the output of sinks, by botocore: conditional PUTs, and uploads in parts that end later.

`io.object_store`, the store of checkpoints, has another library: obstore has no handle of an upload that outlives the
process. An upload that another process completes is how a file of several parts becomes visible at a commit.

- Endpoint, region and credentials come from the environment of the host (`runtime.s3`), as for checkpoints.
- The server checks each part and object against its MD5, and a completion against the ETags of all parts.
- The first creation of a process tries out whether the store honours conditions: claims, logs and Delta tables need it.
- A process makes its client with the first call; a client does not survive a fork.
"""

import base64
import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from uuid import uuid4

from runtime import s3
from runtime.access.data_roots import check_url
from runtime.errors import EnvironmentFailure, JobRejected, TargetAway
from runtime.libraries import import_library, require_libraries

_MAX_ERROR_CHARACTERS: Final = 300
_EXISTS_STATUS: Final = 412
_DELETED_AT_ONCE: Final = 1_000  #: objects of a request; the limit of S3
_MAX_LOOKUPS: Final = 3  #: of an object that a listing shows and a HEAD does not

_making: Final = threading.Lock()
#: process, endpoint and bucket of stores that honour conditions
_conditional_stores: Final[set[tuple[int, str | None, str]]] = set()


def check_place(field: str, path: str) -> None:
    """Checks the folder of a sink, if it is a URL, without I/O.

    Raises:
        JobRejected: names `field`: no `s3://bucket/prefix`, a URL that jobs may not use, or a missing library.
    """
    if "://" not in path:
        return
    if not s3.is_prefix(path.rstrip("/")):
        scheme, _, location = path.partition("://")
        place = f"{scheme}://{location.rpartition('@')[2]}"  # without a login
        detail = f"{place} must be a folder or s3://bucket/prefix, without a login: mount other storage"
        raise JobRejected("bad-path", field, detail)
    require_libraries({"botocore": "cloud"})
    check_url(field, path, os.environ)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as its store describes it. `etag` changes with its content."""

    bytes: int
    etag: str
    modified_ms: int


class UploadGone(EnvironmentFailure):
    """The store does not know the upload: it was completed or aborted."""


class ObjectExists(EnvironmentFailure):
    """The store refuses a completion, since an object has the key."""


class Bucket:
    """Objects by their names below a prefix.

    Args:
        uri: `s3://bucket/prefix`.
        argument: argument of the sink that names it, for errors.
    """

    def __init__(self, uri: str, argument: str = "path") -> None:
        self.uri, self._argument = uri.rstrip("/"), argument
        match = s3.URI.fullmatch(self.uri)
        if match is None:
            raise JobRejected("bad-path", argument, f"{uri} is no s3://bucket/prefix")
        self._bucket, self._prefix = match["bucket"], f"{match['key'].lstrip('/')}/"

    def check(self) -> None:
        """Raises JobRejected if jobs may not use the URL."""
        check_place(self._argument, self.uri)

    # ------------------------------------------------------------ objects

    def names(self, prefix: str = "") -> list[str]:
        """The names that begin with `prefix`, sorted."""
        with self._errors(prefix or ".", "listed"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            return sorted(entry["Key"][len(self._prefix) :] for page in pages for entry in page.get("Contents", ()))

    def read(self, name: str) -> bytes | None:
        """The content; None if there is no such object."""
        with self._errors(name, "read"):
            try:
                return bytes(self._client.get_object(**self._at(name))["Body"].read())
            except self._refusal as error:
                if _code(error) != s3.MISSING_CODE:
                    raise
                return None

    def read_tail(self, name: str, nbytes: int) -> bytes:
        """The last bytes of an object, which has `nbytes` or more."""
        with self._errors(name, "read"):
            return bytes(self._client.get_object(**self._at(name), Range=f"bytes=-{nbytes}")["Body"].read())

    def find(self, name: str) -> StoredObject | None:
        """None if there is no such object."""
        with self._errors(name, "read"):
            for _ in range(_MAX_LOOKUPS):
                try:
                    head = self._client.head_object(**self._at(name))
                    return StoredObject(
                        head["ContentLength"], _etag(head), int(head["LastModified"].timestamp() * 1000)
                    )
                except self._refusal as error:
                    if _status(error) != s3.MISSING_STATUS:
                        raise
                if name not in self.names(name):  # a HEAD has no body, and thus no code that tells a missing object
                    return None
        raise TargetAway(f"{self.uri}/{name} cannot be read: the store lists it, and answers that it is missing")

    def create(self, name: str, data: bytes) -> bool:
        """Creates an object atomically. False if there is one of this name with other content."""
        self.check()
        self.check_conditions()
        return self._create(name, data)

    def check_conditions(self) -> None:
        """Raises JobRejected if the store ignores the condition of a creation. Asks it once in a process."""
        store = (os.getpid(), s3.endpoint(), self._bucket)
        if store in _conditional_stores:
            return
        probe = f".weir-probe-{uuid4().hex}"
        is_created, is_replaced = self._create(probe, b"1"), self._create(probe, b"2")
        with self._errors(probe, "deleted"):
            self._client.delete_object(**self._at(probe))
        if not is_created or is_replaced:
            problem = "ignores If-None-Match, so of two commits the second replaces the first: choose another store"
            raise JobRejected("unsupported-store", self._argument, f"the store of {self.uri} {problem}")
        _conditional_stores.add(store)

    def _create(self, name: str, data: bytes) -> bool:
        with self._errors(name, "created"):
            while True:
                try:
                    self._client.put_object(**self._at(name), Body=data, ContentMD5=_md5(data), IfNoneMatch="*")
                    return True
                except self._refusal as error:
                    if _status(error) != _EXISTS_STATUS:
                        raise
                content = self.read(name)
                if content is not None:  # else it was deleted in between
                    return content == data  # perhaps created here, and the reply was lost

    def put(self, name: str, data: bytes) -> str:
        """Writes an object, over one of this name. Returns its ETag."""
        self.check()
        with self._errors(name, "written"):
            return _etag(self._client.put_object(**self._at(name), Body=data, ContentMD5=_md5(data)))

    def delete(self, names: Sequence[str]) -> None:
        """Missing objects are left out."""
        for start in range(0, len(names), _DELETED_AT_ONCE):
            keys = [{"Key": self._prefix + name} for name in names[start : start + _DELETED_AT_ONCE]]
            with self._errors(f"{names[start]} and {len(keys) - 1} others", "deleted"):
                reply = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True})
            for error in reply.get("Errors", ()):
                if error["Code"] != s3.MISSING_CODE:
                    problem = f"s3://{self._bucket}/{error['Key']} cannot be deleted: {error['Code']}"
                    raise EnvironmentFailure(problem)

    # ------------------------------------------------------------ uploads

    def begin_upload(self, name: str) -> str:
        """The id of a new upload, which becomes the object `name`."""
        self.check()
        with self._errors(name, "written"):
            return str(self._client.create_multipart_upload(**self._at(name))["UploadId"])

    def put_part(self, name: str, upload: str, number: int, data: bytes, md5: bytes) -> str:
        """Returns the ETag of the part. All parts but the last need 5 MiB or more. `md5`: digest of the data."""
        with self._errors(name, "written"):
            part = {"UploadId": upload, "PartNumber": number, "ContentMD5": base64.b64encode(md5).decode()}
            return _etag(self._client.upload_part(**self._at(name), **part, Body=data))

    def complete(self, name: str, upload: str, etags: Sequence[str], *, replaces: bool) -> str:
        """Makes the parts visible as the object. Returns its ETag.

        Args:
            replaces: False: refused if an object has the name. Not atomic on every server.

        Raises:
            UploadGone: the upload is completed or aborted.
            ObjectExists: an object has the name.
            EnvironmentFailure: the parts in the store are others.
        """
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        condition = {} if replaces else {"IfNoneMatch": "*"}
        with self._errors(name, "completed"):
            try:
                reply = self._client.complete_multipart_upload(
                    **self._at(name), UploadId=upload, MultipartUpload={"Parts": parts}, **condition
                )
            except self._refusal as error:
                if _code(error) == s3.MISSING_UPLOAD_CODE:
                    raise UploadGone(f"{self.uri}/{name}: the store has no upload {upload}") from error
                if _status(error) == _EXISTS_STATUS:
                    raise ObjectExists(f"{self.uri}/{name}: there is an object of this name") from error
                raise
        return _etag(reply)

    def abort(self, name: str, upload: str) -> None:
        """Deletes the parts of an upload, unless it has ended."""
        with self._errors(name, "aborted"):
            try:
                self._client.abort_multipart_upload(**self._at(name), UploadId=upload)
            except self._refusal as error:
                if _code(error) != s3.MISSING_UPLOAD_CODE:
                    raise

    def uploads(self, prefix: str = "") -> list[tuple[str, str]]:
        """Name and id of the uploads that have not ended, of names that begin with `prefix`."""
        with self._errors(prefix or ".", "listed"):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            entries = [entry for page in pages for entry in page.get("Uploads", ())]
        return [(entry["Key"][len(self._prefix) :], entry["UploadId"]) for entry in entries]

    # ------------------------------------------------------------ client

    def _at(self, name: str) -> Mapping[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    @property
    def _client(self) -> Any:
        with _making:
            return _client(os.getpid(), s3.endpoint())

    @property
    def _refusal(self) -> Any:
        return import_library("botocore.exceptions", "cloud").ClientError

    @contextmanager
    def _errors(self, name: str, action: str) -> Iterator[None]:
        """Turns errors of the library into those of Weir.

        Raises:
            TargetAway: the store does not serve now.
            EnvironmentFailure: it refuses.
        """
        exceptions = import_library("botocore.exceptions", "cloud")
        subject = f"{self.uri}/{name} cannot be {action}"
        try:
            yield
        except exceptions.ClientError as error:
            kind = TargetAway if s3.is_temporary(_status(error), _code(error)) else EnvironmentFailure
            raise kind(f"{subject}: status {_status(error)} {_code(error) or ''}".rstrip()) from error
        except exceptions.BotoCoreError as error:
            streams = (exceptions.IncompleteReadError, exceptions.ResponseStreamingError)
            is_away = isinstance(error, (exceptions.HTTPClientError, *streams))
            is_away = is_away and not isinstance(error, exceptions.SSLError)
            kind = TargetAway if is_away else EnvironmentFailure
            raise kind(f"{subject}: {str(error)[:_MAX_ERROR_CHARACTERS]}") from error


@cache
def _client(process: int, endpoint: str | None) -> Any:
    """The client of this process, whose id is `process`."""
    if variable := s3.wrong_endpoint():
        raise EnvironmentFailure(f"{variable} is not the URL of a server, such as https://host:8333")
    is_virtual = os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() == "true"
    config = import_library("botocore.config", "cloud").Config(
        connect_timeout=s3.CONNECT_TIMEOUT_S,
        read_timeout=s3.READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": s3.RETRIES + 1},
        s3={"addressing_style": "virtual" if is_virtual else "path"},
        ignore_configured_endpoint_urls=True,  # as all parts of Weir: by `s3.endpoint` alone
        request_checksum_calculation="when_required",  # objects, parts and deletions have a Content-MD5
        response_checksum_validation="when_required",
    )
    logging.getLogger("botocore").setLevel(logging.WARNING)  # else the log of each process names its credentials' place
    session = import_library("botocore.session", "cloud").get_session()
    client = session.create_client("s3", endpoint_url=endpoint, region_name=s3.region() or "us-east-1", config=config)
    client.meta.events.register("before-sign.s3.DeleteObjects", _add_md5)
    return client


def _add_md5(request: Any, **_: Any) -> None:
    """The library sends a CRC32 only, which older servers do not know."""
    request.headers["Content-MD5"] = _md5(request.body)


def _status(error: Any) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])


def _code(error: Any) -> str | None:
    """The code of a refusal; None if its body has none. The library then has the status in its place."""
    code = error.response.get("Error", {}).get("Code")
    return None if not code or str(code).isdecimal() else str(code)


def _etag(reply: Mapping[str, Any]) -> str:
    return str(reply["ETag"]).strip('"')


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
