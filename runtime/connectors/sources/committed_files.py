"""Which files of an output folder of Weir are committed: a reader sees all files of a checkpoint or none."""

import re
from pathlib import Path
from typing import Final

from runtime.connectors.commit_log import CommitLog
from runtime.connectors.names import NAME_PATTERN

#: a visible file of a sink of Weir, of any format
_SINK_FILE: Final = re.compile(rf"part-(?P<job>{NAME_PATTERN})-\d+-(?P<sink>{NAME_PATTERN})-\d+-\d+-[^-/]+")


class CommittedFiles:
    """The commit log of `folder`, if it has one. Later calls read the new epochs only."""

    def __init__(self, folder: Path) -> None:
        self._log = CommitLog(folder)
        self._paths: set[str] = set()
        self._read_up_to: dict[tuple[str, str], int] = {}  #: number of the newest epoch read, by job and sink

    def refresh(self) -> None:
        """Reads the new epochs. Call it before the folder is listed, so that the listing has all of their files."""
        for job, sink in self._log.sinks():
            before = self._read_up_to.get((job, sink), -1)
            new = [number for number in self._log.numbers(job, sink) if number > before]
            for epoch in self._log.epochs(job, sink, new):
                self._paths.update(file.name for file in epoch.files)
            self._read_up_to[job, sink] = max([before, *new])

    def is_committed(self, path: str) -> bool:
        """Whether a file is in an epoch. Files of other writers, and of sinks without a log, always are."""
        match = _SINK_FILE.fullmatch(path.rpartition("/")[2])
        if match is None or (match["job"], match["sink"]) not in self._read_up_to:
            return True
        return path in self._paths
