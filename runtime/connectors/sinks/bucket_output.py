"""Files in a bucket, exactly once, by uploads that a commit completes.

A file is an upload in parts to its visible name. The parts are sent as rows arrive. Nobody sees them before the upload
is completed, and the job master does this once the checkpoint is recorded. (Hadoop: the magic committer of S3A; Flink:
`RecoverableWriter` of S3.)

    part-<job>-<token>-<uid>-<subtask>-0-<n>.parquet    committed; 0: an upload is named before its checkpoint is known
    .claims/<visible name>.claim                        the upload that may take the name; until the log names the file
    .commit-log/<job>-<sink>-<n>.json                   the files of a checkpoint, see `connectors/commit_log`

- The claim is a conditional PUT. A completion is one too, but servers let several of them win at the same time.
- A commit may be repeated. A completed upload is gone: the object is then compared with the size and the ETags of the
  parts. An object with others is foreign and never overwritten.
- The commit log proves that a file was committed, also when a consumer has moved it since.
- Uploads of ended attempts are aborted before the next attempt, unless a retained checkpoint names them.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from runtime.connectors.bucket import Bucket, ObjectExists, UploadGone
from runtime.connectors.bucket_file import MAX_OPEN_UPLOADS, BucketFile, upload_etag
from runtime.connectors.commit_log import LOG_FOLDER, CommitLog, LoggedFile
from runtime.connectors.file_names import FINAL_NAME
from runtime.connectors.names import encode_name
from runtime.connectors.sinks.claims import CLAIMS_FOLDER
from runtime.core.job.ids import Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.ports import SinkCommitter

_MD5: Final = re.compile(r"[0-9a-f]{32}")
_CLAIM_SUFFIX: Final = ".claim"


class BucketPlace:
    """Implements `OutputPlace` (`sinks.parquet`). `suffix`: of the names of files."""

    max_open_files = MAX_OPEN_UPLOADS

    def __init__(self, bucket: Bucket, suffix: str = "parquet") -> None:
        self._bucket, self._suffix = bucket, suffix

    def check(self) -> None:
        self._bucket.check()

    def make(self) -> None:
        """A bucket has no folders."""

    def begin(self, folder: str, owner: str, number: int) -> "UploadedFile":
        return UploadedFile(self._bucket, self.final_name(folder, owner, 0, number))

    def final_name(self, folder: str, owner: str, checkpoint: int, number: int) -> str:
        return f"{folder}/part-{owner}-0-{number}.{self._suffix}".lstrip("/")

    def sync(self) -> None:
        """A part is durable when its request is answered."""

    def remove(self, committable: Mapping[str, Any]) -> None:
        with contextlib.suppress(EnvironmentFailure):  # the clean-up before the next attempt aborts it
            self._bucket.abort(committable["key"], committable["upload"])


class UploadedFile(BucketFile):
    """Implements `PendingOutput` (`sinks.parquet_file`)."""

    def finish(self) -> Mapping[str, Any]:
        upload, etags = self.finish_upload()
        if not self.has_md5_etags:
            detail = (
                f"{self._bucket.uri}: its ETags are not the MD5 of the content, as with encryption by a key of KMS: a "
                "repeated commit could not recognise its own file. Write a table, or choose another bucket"
            )
            raise JobRejected("unsupported-store", "path", detail)
        self.close()
        return {
            "key": self.name,
            "upload": upload,
            "etags": etags,
            "bytes": self.size,
            "folder": self._bucket.uri,
        }

    def discard(self) -> None:
        self.abandon()


class BucketCommitLog(CommitLog):
    """A commit log in a bucket. An entry is created by a conditional PUT, so there is no temporary file."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._location = bucket, f"{bucket.uri}/{LOG_FOLDER}"
        self._newest = {}

    def clean(self, job: str, sink: str, token: int) -> None:
        """There is nothing to be removed."""

    def _names(self) -> list[str]:
        return [name.removeprefix(f"{LOG_FOLDER}/") for name in self._bucket.names(f"{LOG_FOLDER}/")]

    def _content(self, name: str) -> bytes | None:
        return self._bucket.read(f"{LOG_FOLDER}/{name}")

    def _is_visible(self, name: str) -> bool:
        return self._bucket.find(name) is not None

    def _write(self, name: str, job: str, sink: str, token: int, data: bytes) -> bool:
        return self._bucket.create(f"{LOG_FOLDER}/{name}", data)


class BucketCommitter(SinkCommitter):
    """Completes the uploads of a recorded checkpoint, and adds their files to the commit log."""

    commits_in_master = True

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._log = BucketCommitLog(bucket)

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        """Makes the files visible that the log does not name yet.

        Raises:
            EnvironmentFailure: an upload is lost, a foreign object has its name, or the store failed.
            JobRejected: a committable is invalid, or pending in another place.
        """
        self._bucket.check()
        files = [_check_committable(committable, permit.job) for committable in committables]
        if not files:
            return 0
        job, sink = _sink_of(files)
        order = (permit.taken_by, permit.checkpoint)
        logged = self._log.logged_names(job, sink, order)
        due = [file for file in files if file["final"] not in logged and self._is_here(file, job, sink)]
        count = sum(map(self._complete, due))
        here = [file for file in files if file["folder"] == self._bucket.uri]
        self._log.add(job, sink, order, [LoggedFile(file["final"], file["bytes"], file["rows"]) for file in here])
        self._bucket.delete([_claim_name(file["final"]) for file in due])
        return count

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        """Aborts uploads, and removes claims, of attempts before `token` that no retained manifest names."""
        self._bucket.check()
        entries = [each for each in keep if isinstance(each, Mapping) and "upload" in each]
        kept_uploads, kept_names = ({str(each.get(key)) for each in entries} for key in ("upload", "final"))
        owner = (encode_name(job), encode_name(uid))
        removed = 0
        for name, upload in self._bucket.uploads():
            if _is_older(name, owner, token) and upload not in kept_uploads:
                self._bucket.abort(name, upload)
                removed += 1
        claims = [name.removeprefix(f"{CLAIMS_FOLDER}/") for name in self._bucket.names(f"{CLAIMS_FOLDER}/")]
        finals = [name.removesuffix(_CLAIM_SUFFIX) for name in claims]
        self._bucket.delete(
            [_claim_name(name) for name in finals if _is_older(name, owner, token) and name not in kept_names]
        )
        return removed

    def _is_here(self, file: Mapping[str, Any], job: str, sink: str) -> bool:
        """Whether the upload belongs to this place. An upload of a former place must have been committed there.

        Raises:
            JobRejected: it is pending there. Its parts cannot be copied.
        """
        if file["folder"] == self._bucket.uri:
            return True
        former = Bucket(file["folder"])
        former.check()
        if any(file["final"] in epoch.file_names for epoch in BucketCommitLog(former).epochs(job, sink)):
            return False
        problem = f"output of the checkpoint is pending in {former.uri}, not in {self._bucket.uri}"
        raise JobRejected("other-folder", "path", f"{problem}: restore it into that folder first")

    # ------------------------------------------------------------ files

    def _complete(self, file: Mapping[str, Any]) -> bool:
        """Makes a file visible. False if it was already."""
        name, upload = file["final"], file["upload"]
        if not self._bucket.create(_claim_name(name), upload.encode()):
            problem = (
                "another run of a job with this name has claimed the file to commit; if that run has ended, delete"
            )
            raise EnvironmentFailure(f"{self._bucket.uri}/{name}: {problem} {self._bucket.uri}/{_claim_name(name)}")
        if self._is_complete(file):
            return False
        try:
            self._bucket.complete(name, upload, file["etags"], replaces=False)
        except (ObjectExists, UploadGone) as error:
            if self._is_complete(file):  # completed by a request whose reply was lost, or by another master
                return False
            if self._is_logged(file):
                return False
            problem = f"the file to commit, with {file['rows']} rows, is neither pending nor committed"
            raise EnvironmentFailure(f"{self._bucket.uri}/{name}: {problem}") from error
        return True

    def _is_complete(self, file: Mapping[str, Any]) -> bool:
        """Whether the object is there. Raises EnvironmentFailure: a foreign object has its name."""
        stored = self._bucket.find(file["final"])
        if stored is None:
            return False
        if (stored.bytes, stored.etag) == (file["bytes"], upload_etag(file["etags"])):
            return True
        problem = "a foreign object has the name of the file to commit: move it away"
        raise EnvironmentFailure(f"{self._bucket.uri}/{file['final']}: {problem}")

    def _is_logged(self, file: Mapping[str, Any]) -> bool:
        """Whether another master has committed the file, and a consumer has taken it since. Reads the whole log."""
        epochs = BucketCommitLog(self._bucket).epochs(*_sink_of([file]))
        return any(file["final"] in epoch.file_names for epoch in epochs)


def _claim_name(final: str) -> str:
    return f"{CLAIMS_FOLDER}/{final}{_CLAIM_SUFFIX}"


def _sink_of(files: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Job and sink of the files, spelled as in file names. Raises JobRejected if there is more than one sink."""
    sinks = {match.group("job", "uid") for file in files if (match := FINAL_NAME.fullmatch(file["final"]))}
    if len(sinks) != 1:
        raise JobRejected("bad-committable", "sink", f"a checkpoint names files of several sinks: {sorted(sinks)}")
    job, sink = sinks.pop()
    return job, sink


def _is_older(name: str, owner: tuple[str, str], token: Token) -> bool:
    """Whether a file is of the job and sink `owner`, by an attempt before `token`."""
    match = FINAL_NAME.fullmatch(name)
    return match is not None and match.group("job", "uid") == owner and int(match["token"]) < token


def _check_committable(committable: Any, job: str) -> Mapping[str, Any]:
    """The committable, if its names are valid and of this job: a manifest is not trusted.

    Raises:
        JobRejected: the committable is invalid, or of a sink that writes to a folder; the message quotes it.
    """
    try:
        name = FINAL_NAME.fullmatch(committable["final"])
        is_valid = name is not None and name["job"] == encode_name(job) and name["begun"] is None
        is_valid = is_valid and committable["etags"] and all(map(_MD5.fullmatch, committable["etags"]))
        types = {"upload": str, "etags": list, "folder": str, "bytes": int, "rows": int}
        is_valid = is_valid and all(isinstance(committable[key], kind) for key, kind in types.items())
    except (KeyError, TypeError):
        is_valid = False
    if not is_valid:
        detail = f"a checkpoint names a file to commit that this sink has not written for job {job}: {committable!r}"
        raise JobRejected("bad-committable", "sink", detail)
    file: Mapping[str, Any] = committable
    return file
