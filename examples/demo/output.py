"""The demo's view of the output folder: visible files, hidden files, and foreign files.

Spark, pyarrow and Hive ignore names that start with `.` or `_`; so does this module.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from runtime.io.store import open_store


@dataclass
class Output:
    """The output folder of a job, with foreign files that must stay unchanged.

    Args:
        job: the part of file names that identifies the job.
    """

    folder: Path
    job: str
    _foreign_digests: dict[str, str] = field(default_factory=dict)

    def visible_files(self) -> list[Path]:
        """The files that a reader takes for output, without the foreign files."""
        paths = self.folder.glob("*") if self.folder.is_dir() else ()
        return sorted(path for path in paths if path.name[0] not in "._" and path.name not in self._foreign_digests)

    def hidden_files(self) -> list[Path]:
        """The job's files that are not yet committed."""
        return sorted(self.folder.glob(f".weir-{self.job}-*"))

    def leftovers(self, storage: str) -> list[str]:
        """Hidden files that no retained checkpoint or savepoint names, so that they can never be committed.

        Files that were pending at a savepoint are not leftovers: a restore of the savepoint commits them.
        """
        store = open_store(storage)
        paths = [path for path in store.list("") if path.endswith("/manifest.json")]
        manifests = "".join(store.get(path).decode() for path in paths)
        return [path.name for path in self.hidden_files() if path.name not in manifests]

    def rows(self) -> int:
        """Number of committed rows, from the file footers; an incomplete file raises an error."""
        return sum(pq.read_metadata(path).num_rows for path in self.visible_files())

    def rows_by_value(self) -> Counter[str]:
        """Number of occurrences of each committed row."""
        return Counter(repr(row) for path in self.visible_files() for row in pq.read_table(path).to_pylist())

    def misnamed_files(self) -> list[str]:
        """Committed files whose name does not identify this job as the writer."""
        return [path.name for path in self.visible_files() if not path.name.startswith(f"part-{self.job}-")]

    def add_foreign_files(self) -> None:
        """Adds foreign files: a note, and a committed, a pending and an in-progress file of a second job.

        The second job's name begins with this job's name, to catch a clean-up by prefix. Its committed file has no
        rows, so that the whole folder still equals the expected result.
        """
        other = f"{self.job}1"
        schema = pq.read_schema(self.visible_files()[0])
        (self.folder / "_notes.txt").write_text("Not written by any job.\n")
        pq.write_table(schema.empty_table(), self.folder / f"part-{other}-1-parquet-0-1-0.parquet")
        for ending in ("pending", "inprogress"):
            (self.folder / f".weir-{other}-1-parquet-0-0.{ending}").write_bytes(b"of another job")
        names = ("_notes.txt", *(path.name for path in self.folder.glob(f"*-{other}-1-*")))
        names = (*names, *(path.name for path in self.folder.glob(f".weir-{other}-1-*")))
        self._foreign_digests = {name: _digest(self.folder / name) for name in names}

    def changed_foreign_files(self) -> list[str]:
        return [name for name, digest in self._foreign_digests.items() if _digest(self.folder / name) != digest]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "gone"
