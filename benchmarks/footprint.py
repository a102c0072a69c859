"""The memory and the checkpoint files of a run, sampled from outside: the same measure for every system."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil


@dataclass
class Footprint:
    """`folder`: of the checkpoints. Files that live shorter than the time between two samples are missed."""

    folder: Path
    peak_rss_bytes: int = 0  #: of all processes together; pages that processes share count in each of them
    _files: dict[int, int] = field(default_factory=dict)  #: inode -> largest size seen; renames keep the inode

    def sample(self, processes: Iterable[psutil.Process]) -> None:
        rss = 0
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                rss += process.memory_info().rss
        self.peak_rss_bytes = max(self.peak_rss_bytes, rss)
        for parent, _, names in os.walk(self.folder):
            for name in names:
                with suppress(FileNotFoundError):
                    status = Path(parent, name).stat()
                    self._files[status.st_ino] = max(status.st_size, self._files.get(status.st_ino, 0))

    @property
    def checkpoint_bytes(self) -> int:
        """The bytes of all checkpoint files that were seen, also of files deleted since."""
        return sum(self._files.values())
