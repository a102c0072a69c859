"""The output folder as the demo looks at it: what readers see, what is hidden, and files that are none of the job's.

Spark, pyarrow and Hive leave out names that start with `.` or `_`; so does this module.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq


@dataclass
class Output:
    """The folder of one job, with files of others that must survive.

    Args:
        job: as it stands in the job's file names.
    """

    folder: Path
    job: str
    _strangers: dict[str, str] = field(default_factory=dict)

    def committed(self) -> list[Path]:
        """What a reader takes for output, without the strangers."""
        found = self.folder.glob("*") if self.folder.is_dir() else ()
        return sorted(path for path in found if path.name[0] not in "._" and path.name not in self._strangers)

    def hidden(self) -> list[Path]:
        """The job's own files that are not committed (yet)."""
        return sorted(self.folder.glob(f".weir-{self.job}-*"))

    def leftovers(self, storage: Path) -> list[str]:
        """Hidden files that no retained checkpoint or savepoint names: nothing will ever commit them.

        A savepoint commits nothing by itself, so what was pending when it was taken stays for its own restore.
        """
        manifests = "".join(path.read_text() for path in storage.glob("*/manifest.json"))
        return [path.name for path in self.hidden() if path.name not in manifests]

    def rows(self) -> int:
        """Committed rows, from the files' footers; a file that is not whole fails here."""
        return sum(pq.read_metadata(path).num_rows for path in self.committed())

    def rows_by_value(self) -> Counter[str]:
        """Each committed row with the number of times that it is there."""
        return Counter(repr(row) for path in self.committed() for row in pq.read_table(path).to_pylist())

    def foreign_names(self) -> list[str]:
        """Committed files whose name does not say that this job wrote them."""
        return [path.name for path in self.committed() if not path.name.startswith(f"part-{self.job}-")]

    def add_strangers(self) -> None:
        """A person's note, and a second job's files: committed, pending and in progress.

        The second job's name begins with ours, which is what a careless clean-up would trip over; its committed file
        holds no rows, so that the folder as a whole still equals the answer.
        """
        other = f"{self.job}1"
        schema = pq.read_schema(self.committed()[0])
        (self.folder / "_notes.txt").write_text("Not written by any job.\n")
        pq.write_table(schema.empty_table(), self.folder / f"part-{other}-1-parquet-0-1-0.parquet")
        for ending in ("pending", "inprogress"):
            (self.folder / f".weir-{other}-1-parquet-0-0.{ending}").write_bytes(b"of another job")
        names = ("_notes.txt", *(path.name for path in self.folder.glob(f"*-{other}-1-*")))
        names = (*names, *(path.name for path in self.folder.glob(f".weir-{other}-1-*")))
        self._strangers = {name: _digest(self.folder / name) for name in names}

    def harmed_strangers(self) -> list[str]:
        """Those that are gone or changed."""
        return [name for name, digest in self._strangers.items() if _digest(self.folder / name) != digest]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "gone"
