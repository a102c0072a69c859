"""Parquet files, exactly once, by rename.

A file is written hidden (`.weir-….inprogress`); at the barrier it is closed, made durable and renamed (`….pending`,
still hidden); when its checkpoint has completed it gets its visible name. Readers that ignore hidden names (Spark,
Arrow, Hive) therefore see committed rows only, each once.

    .weir-<job>-<token>-<uid>-<subtask>-<n>.inprogress
    .weir-<job>-<token>-<uid>-<subtask>-<n>.pending
    part-<job>-<token>-<uid>-<subtask>-<checkpoint>-<n>.parquet

The attempt's token is in every name, so no attempt ever touches a file of another one, except the job master, which
removes what older attempts of the same sink left behind. Files of others are never touched or overwritten.
"""

import contextlib
import errno
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq

from runtime.connectors.durable import make_folder, sync_folder, writing
from runtime.connectors.names import safe
from runtime.core.checkpoint import CommitPermit
from runtime.core.ids import Token
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.ports import OperatorContext, SinkCommitter, SinkWriter

_PART: Final = r"[A-Za-z0-9_.~]+"  #: what `safe` makes
_OWNER: Final = rf"(?P<job>{_PART})-(?P<token>\d+)-(?P<uid>{_PART})-\d+"
_HIDDEN: Final = re.compile(rf"\.weir-{_OWNER}-\d+\.(?:inprogress|pending)")
_PENDING: Final = re.compile(rf"\.weir-(?P<owner>{_OWNER})-(?P<number>\d+)\.pending")
_FINAL: Final = re.compile(rf"part-(?P<owner>{_OWNER})-\d+-(?P<number>\d+)\.parquet")
_GROUP_BYTES: Final = 32 << 20  #: rows are gathered to row groups of about this size
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True)
class ParquetSink:
    """Writes Parquet files into a folder.

    Args:
        path: the folder; made when it is not there.
    """

    guarantee: ClassVar[str] = "exactly-once"

    path: str

    def writer(self) -> "ParquetWriter":
        return ParquetWriter(Path(self.path))

    def committer(self) -> "ParquetCommitter":
        return ParquetCommitter(Path(self.path))

    def check(self) -> None:
        if not self.path:
            raise JobRejected("bad-path", "path", "the output folder must be named")

    def folders(self) -> Mapping[str, str]:
        return {"path": self.path}


class ParquetWriter(SinkWriter):
    """Writes one file per checkpoint in which there were rows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._path: Path | None = None
        self._file: Any = None
        self._parquet: Any = None

    def open(self, context: OperatorContext) -> None:
        self._owner = f"{safe(context.job)}-{context.token}-{safe(context.uid)}-{context.index}"
        make_folder(self._folder)

    def write(self, batch: pa.RecordBatch) -> None:
        if self._parquet is None:
            self._begin(batch.schema)
        self._rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= _GROUP_BYTES:
            self._write_group()

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        if self._parquet is None:
            return ()
        assert self._path is not None, "a file that is written has a name"
        self._write_group()
        with writing(self._path):
            self._parquet.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        pending = self._path.with_suffix(".pending")
        self._path.rename(pending)
        sync_folder(self._folder)
        committable = {
            "pending": pending.name,
            "final": f"part-{self._owner}-{checkpoint}-{self._number}.parquet",
            "rows": self._rows,
            "bytes": pending.stat().st_size,
        }
        self._path = self._file = self._parquet = None
        return (committable,)

    def close(self) -> None:
        """What is in progress belongs to no checkpoint and goes; what is pending stays."""
        for part in (self._parquet, self._file):
            if part is not None:
                with contextlib.suppress(OSError):  # it goes in any case
                    part.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._path = self._file = self._parquet = None

    def _begin(self, schema: pa.Schema) -> None:
        self._number += 1
        self._rows = 0
        self._path = self._folder / f".weir-{self._owner}-{self._number}.inprogress"
        self._file = self._path.open("xb")
        self._parquet = pq.ParquetWriter(self._file, schema, compression="zstd", use_dictionary=_dictionaries(schema))

    def _write_group(self) -> None:
        if self._waiting:
            assert self._path is not None, "a file that is written has a name"
            with writing(self._path):
                self._parquet.write_table(pa.Table.from_batches(self._waiting), sum(map(len, self._waiting)))
        self._waiting, self._waiting_bytes = [], 0


def _dictionaries(schema: pa.Schema) -> bool | list[str]:
    """The columns worth a dictionary: text. Numbers take half as long again with one, and no less room after zstd."""
    if any(pa.types.is_nested(item.type) for item in schema):
        return True  # what lies inside has names of its own
    return [item.name for item in schema if not pa.types.is_primitive(item.type)]


class ParquetCommitter(SinkCommitter):
    """Gives pending files their visible names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        files = [_checked(committable, permit.job) for committable in committables]
        shown = sum(self._show(file) for file in files)
        if committables:
            sync_folder(self._folder)
        return shown

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        kept, owner = {committable["pending"] for committable in keep}, (safe(job), safe(uid))
        removed = 0
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            found = _HIDDEN.fullmatch(path.name)
            if found and found.group("job", "uid") == owner and int(found["token"]) < token and path.name not in kept:
                path.unlink(missing_ok=True)
                removed += 1
        return removed

    def _show(self, committable: Any) -> bool:
        """Whether the file was not visible before."""
        pending, final = self._folder / committable["pending"], self._folder / committable["final"]
        try:
            size = pending.stat().st_size
        except FileNotFoundError:
            if final.exists():
                return False
            raise EnvironmentFailure(f"{pending}: the file to commit is neither pending nor committed") from None
        if size != committable["bytes"]:
            raise EnvironmentFailure(f"{pending}: the file to commit has {size} bytes, not {committable['bytes']}")
        shown = self._link(pending, final)
        pending.unlink(missing_ok=True)
        return shown

    def _link(self, pending: Path, final: Path) -> bool:
        try:
            _name_also(pending, final)
        except FileExistsError:
            return self._is_ours(pending, final)
        except FileNotFoundError:
            if final.exists():  # another holder of a permit was faster
                return False
            raise EnvironmentFailure(f"{pending}: the file to commit has vanished") from None
        except OSError as error:
            raise EnvironmentFailure(f"{pending}: it cannot be committed: {error}") from error
        return True

    def _is_ours(self, pending: Path, final: Path) -> bool:
        """A commit that was cut off between link and unlink is completed; a foreign file is left alone."""
        try:
            same = final.samefile(pending)
        except FileNotFoundError:
            return False
        if not same:
            raise EnvironmentFailure(f"{final}: a file of this name that is not ours is in the way")
        return False


def _checked(committable: Any, job: str) -> Mapping[str, Any]:
    """The committable, if its names are ours and of this job. It comes from a manifest, which others may have written.

    Raises:
        JobRejected: naming what it holds.
    """
    try:
        pending, final = _PENDING.fullmatch(committable["pending"]), _FINAL.fullmatch(committable["final"])
    except (KeyError, TypeError):
        pending = final = None
    if (
        pending is None or final is None
        or pending["job"] != safe(job)
        or pending.group("owner", "number") != final.group("owner", "number")
        or not isinstance(committable.get("bytes"), int)
    ):  # fmt: skip
        detail = f"a checkpoint names a file to commit that this sink has not written for job {job}: {committable!r}"
        raise JobRejected("bad-committable", "sink", detail)
    found: Mapping[str, Any] = committable
    return found


def _name_also(pending: Path, final: Path) -> None:
    """A link fails where a rename would overwrite. Where links are not to be had, looking first must do."""
    try:
        final.hardlink_to(pending)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if final.exists():
            raise FileExistsError from None
        pending.rename(final)
