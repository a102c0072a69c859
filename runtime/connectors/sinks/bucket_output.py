"""Files in a bucket, exactly once, by uploads that a commit completes.

A file is an upload in parts to its visible name. The parts are sent as rows arrive. They are invisible until the
upload is completed, and the job master does this once the checkpoint is recorded. (Hadoop: the magic committer of S3A;
Flink: `RecoverableWriter` of S3.)

    part-<job>-<token>-<uid>-<subtask>-<random>-<n>.parquet    committed
    .claims/<visible name>.claim         the upload whose completion has begun; until the log names the file
    .commit-log/<job>-<sink>-<n>.json    the files of a checkpoint, see `connectors/commit_log`

- The random number of the writer stands where folders have the checkpoint, which an upload does not know. Ids of jobs
  and tokens are unique in a console only, and a bucket outlives a console.
- A commit begins with a list of the uploads. If one is neither listed nor committed, no file becomes visible.
- A commit may be repeated. A completed upload is gone, and so may be its object, which consumers may move at once. Its
  claim then proves the completion until the commit log does. Only a listed upload gets a claim.
- An object with another size or ETag than the parts is foreign. The commit refuses it.
- Uploads of ended attempts are aborted before the next attempt, unless a retained checkpoint names them.
"""

import contextlib
import re
import secrets
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from runtime.connectors.bucket import Bucket, ObjectExists, UploadGone
from runtime.connectors.bucket_file import MAX_OPEN_UPLOADS, BucketFile, OpenUploads, upload_etag
from runtime.connectors.commit_log import LOG_FOLDER, CommitLog, CommittedEpoch, LoggedFile
from runtime.connectors.file_names import FINAL_NAME
from runtime.connectors.names import encode_name
from runtime.connectors.sinks.claims import CLAIMS_FOLDER
from runtime.connectors.sinks.file_committer import check_kind, sink_of
from runtime.core.job.ids import Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.ports import SinkCommitter

_MD5: Final = re.compile(r"[0-9a-f]{32}")
_CLAIM_SUFFIX: Final = ".claim"
_REQUESTS_AT_ONCE: Final = 8  #: of a commit; less than the connections of the client
_File = Mapping[str, Any]  #: a committable


class BucketPlace:
    """Implements `OutputPlace` (`sinks.parquet`). `suffix`: of the names of files."""

    max_open_files = MAX_OPEN_UPLOADS

    def __init__(self, bucket: Bucket, suffix: str = "parquet") -> None:
        self._bucket, self._suffix = bucket, suffix
        self._random = secrets.randbits(48)
        self._uploads = OpenUploads()

    @property
    def is_full(self) -> bool:
        return self._uploads.are_full

    def check(self) -> None:
        self._bucket.check()

    def make(self) -> None:
        """A bucket has no folders."""

    def begin(self, folder: str, owner: str, number: int) -> "UploadedFile":
        return UploadedFile(self._bucket, self.final_name(folder, owner, 0, number), self._uploads)

    def final_name(self, folder: str, owner: str, checkpoint: int, number: int) -> str:
        return f"{folder}/part-{owner}-{self._random}-{number}.{self._suffix}".lstrip("/")

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
            raise unsupported_store(self._bucket.uri, etags[0])
        self.close()
        return {
            "key": self.name,
            "upload": upload,
            "etags": etags,
            "bytes": self.size,
            "folder": self._bucket.uri,
        }


class BucketCommitLog(CommitLog):
    """A commit log in a bucket. An entry is created by a conditional PUT, so there is no temporary file."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._location = bucket, f"{bucket.uri}/{LOG_FOLDER}"
        self._newest = {}

    def clean(self, job: str, sink: str, token: int) -> None:
        """There is nothing to be removed."""

    def _logged_names(
        self, job: str, sink: str, newest: CommittedEpoch | None, order: tuple[int, int]
    ) -> frozenset[str]:
        """Reads backwards, since each entry is a request.

        The checkpoint of an epoch names every older file that a later checkpoint of the attempt may name. So the search
        ends at an epoch of this checkpoint or an earlier one, if no restore of a still older one has written it.
        """
        if newest is None or order > newest.highest:
            return super()._logged_names(job, sink, newest, order)
        names = set[str]()
        for number in reversed(self.numbers(job, sink)):
            for epoch in self.epochs(job, sink, [number]):
                names |= epoch.file_names
                if order >= epoch.highest == (epoch.token, epoch.checkpoint):
                    return frozenset(names)
        return frozenset(names)

    def _names(self) -> list[str]:
        return [name.removeprefix(f"{LOG_FOLDER}/") for name in self._bucket.names(f"{LOG_FOLDER}/")]

    def _content(self, name: str) -> bytes | None:
        return self._bucket.read(f"{LOG_FOLDER}/{name}")

    def _is_visible(self, name: str) -> bool:
        """Only committed files are added, and consumers may have moved them."""
        return True

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

        Checks all files first: if a file is missing, none becomes visible.

        Raises:
            EnvironmentFailure: an upload is lost, a foreign object has its name, or the store failed.
            JobRejected: a committable is invalid, or pending in another place.
        """
        self._bucket.check()
        files = [_check_committable(committable, permit.job) for committable in committables]
        if not files:
            return 0
        job, sink = sink_of(files)
        order = (permit.taken_by, permit.checkpoint)
        here = [file for file in files if self._is_here(file, job, sink)]
        logged = self._log.logged_names(job, sink, order)
        due = [file for file in here if file["final"] not in logged]
        pending, complete, lost = self._by_state(due)
        if lost:
            raise self._loss(lost[0])
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            visible = list(pool.map(self._is_complete, pending))  # of all files, before the first completion
            due = [file for file, is_visible in zip(pending, visible, strict=True) if not is_visible]
            count = sum(pool.map(self._complete, due))
        new = [*(file for file in here if file["final"] in logged), *pending, *complete]
        self._log.add(job, sink, order, [LoggedFile(file["final"], file["bytes"], file["rows"]) for file in new])
        self._bucket.delete([_claim_name(file["final"]) for file in here])
        return count

    def missing(self, committables: Sequence[Any]) -> list[str]:
        _, _, lost = self._by_state(committables)
        return [f"{self._bucket.uri}/{file['final']}" for file in lost]

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        """Aborts uploads, and removes claims, of attempts before `token` that no retained manifest names."""
        self._bucket.check()
        kept = {str(each["final"]) for each in keep if isinstance(each, Mapping) and {"upload", "final"} <= each.keys()}
        owner = (encode_name(job), encode_name(uid))
        claims = [name.removeprefix(f"{CLAIMS_FOLDER}/") for name in self._bucket.names(f"{CLAIMS_FOLDER}/")]
        finals = [name.removesuffix(_CLAIM_SUFFIX) for name in claims]
        # before the uploads: the claim of an aborted upload would prove a completion
        self._bucket.delete([_claim_name(name) for name in finals if _is_older(name, owner, token, kept)])
        removed = 0
        for name, upload in self._bucket.uploads():
            if _is_older(name, owner, token, kept):
                self._bucket.abort(name, upload)
                removed += 1
        return removed

    def _is_here(self, file: _File, job: str, sink: str) -> bool:
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

    def _by_state(self, files: Sequence[_File]) -> tuple[list[_File], list[_File], list[_File]]:
        """The pending files, the complete files that the log does not name, and the lost files."""
        uploads = set(self._bucket.uploads()) if files else set()
        pending = [file for file in files if (file["final"], file["upload"]) in uploads]
        gone = [file for file in files if (file["final"], file["upload"]) not in uploads]
        logged = self._logged_names(gone)
        unlogged = [file for file in gone if file["final"] not in logged]
        complete = [file for file in unlogged if self._is_complete(file) or self._claim_of(file) == file["upload"]]
        return pending, complete, [file for file in unlogged if file not in complete]

    def _complete(self, file: _File) -> bool:
        """Makes a pending file visible. False if another commit was faster."""
        name, upload = file["final"], file["upload"]
        if not self._bucket.create(_claim_name(name), upload.encode()):
            problem = f"another upload has claimed the name, see {self._bucket.uri}/{_claim_name(name)}"
            raise EnvironmentFailure(f"{self._bucket.uri}/{name}: {problem}")
        try:
            etag = self._bucket.complete(name, upload, file["etags"], replaces=False)
        except (ObjectExists, UploadGone) as error:
            if self._is_complete(file) or name in self._logged_names([file]):
                return False
            raise self._loss(file) from error  # a repetition knows a completion by its claim
        if etag != upload_etag(file["etags"]):
            raise unsupported_store(self._bucket.uri, etag)
        return True

    def _is_complete(self, file: _File) -> bool:
        """Whether the object is there. Raises EnvironmentFailure: a foreign object has its name."""
        stored = self._bucket.find(file["final"])
        if stored is None:
            return False
        if (stored.bytes, stored.etag) == (file["bytes"], upload_etag(file["etags"])):
            return True
        problem = "a foreign object has the name of the file to commit: move it away"
        raise EnvironmentFailure(f"{self._bucket.uri}/{file['final']}: {problem}")

    def _logged_names(self, files: Sequence[_File]) -> Set[str]:
        """The names in the whole log: a file may be in an entry of another master, or of a job of another console."""
        epochs = self._log.epochs(*sink_of(files)) if files else ()
        return frozenset().union(*(epoch.file_names for epoch in epochs))

    def _claim_of(self, file: _File) -> str | None:
        """The upload that has claimed the name."""
        content = self._bucket.read(_claim_name(file["final"]))
        return None if content is None else content.decode(errors="replace")

    def _loss(self, file: _File) -> EnvironmentFailure:
        problem = f"the file to commit, with {file['rows']} rows, is neither pending nor committed"
        return EnvironmentFailure(f"{self._bucket.uri}/{file['final']}: {problem}")


def unsupported_store(uri: str, etag: str) -> JobRejected:
    detail = (
        f"{uri}: its ETags are not the MD5 of the content ({etag}), as with encryption by a key of KMS: a "
        "repeated commit could not recognise its own file. Write a table, or choose another bucket"
    )
    return JobRejected("unsupported-store", "path", detail)


def _claim_name(final: str) -> str:
    return f"{CLAIMS_FOLDER}/{final}{_CLAIM_SUFFIX}"


def _is_older(name: str, owner: tuple[str, str], token: Token, kept: Set[str]) -> bool:
    """Whether a file is of the job and sink `owner`, by an attempt before `token`, and not in `kept`."""
    match = None if name in kept else FINAL_NAME.fullmatch(name)
    return match is not None and match.group("job", "uid") == owner and int(match["token"]) < token


def _check_committable(committable: Any, job: str) -> Mapping[str, Any]:
    """The committable, if its names are valid and of this job: a manifest is not trusted.

    Raises:
        JobRejected: the committable is invalid, and the message quotes it; or it belongs to a folder.
    """
    check_kind(committable, "pending")
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
    file: _File = committable
    return file
