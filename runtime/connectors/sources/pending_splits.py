"""The splits of a folder that a subtask has not begun, from the listings of the folder.

A watched folder is listed repeatedly. A bounded folder is listed once: its listing is state from the first checkpoint
on, and a restored subtask continues with the positions that are not finished.
"""

from collections.abc import Callable, Iterable, Mapping

from runtime.connectors.formats import Format, ScannedFormat
from runtime.connectors.sources.file_positions import FilePositions, Split, reading_order
from runtime.connectors.sources.listing import InputFolder, ListedFile, Listing
from runtime.errors import DataRejected, EnvironmentFailure


class PendingSplits:
    """The splits, each taken once, in the order of path and first byte.

    Args:
        kind: the format of the files, which decides whether they are cut.
        list_bounded: lists a bounded folder; None: the folder is watched.
        listing: the listing of the job master for all subtasks, if there is one.
        interval_ms: how often a watched folder is listed.
    """

    def __init__(
        self,
        folder: InputFolder,
        positions: FilePositions,
        kind: Format,
        list_bounded: Callable[[], Listing] | None,
        listing: Listing | None,
        interval_ms: int,
    ) -> None:
        self._folder, self._positions, self._kind = folder, positions, kind
        self._list_bounded, self._listing, self._interval_ms = list_bounded, listing, interval_ms
        self._splits: list[Split] = []  #: in descending order
        self._known: set[str] = set()  #: paths
        self._listed_at: int | None = None
        self.is_look_due = False  #: a watched folder is listed at the next call, whatever the interval
        self.discoveries = 0  #: listings with new splits of this subtask

    def __len__(self) -> int:
        return len(self._splits)

    @property
    def is_listed(self) -> bool:
        return self._listed_at is not None

    def take(self) -> Split:
        """Removes and returns the next split."""
        return self._splits.pop()

    def discover(self, now_ms: int) -> bool:
        """Lists the folder if that is due. Returns whether the listing of a bounded source is complete from now on.

        Raises:
            EnvironmentFailure: there is no such folder, or a partly read file is missing.
        """
        if self._listed_at is not None:
            waited_ms = now_ms - self._listed_at
            is_recent = 0 <= waited_ms < self._interval_ms and not self.is_look_due
            if self._list_bounded is not None or is_recent:
                return False
        is_first, self.is_look_due = self._listed_at is None, False
        self._listed_at = now_ms
        if self._list_bounded is not None:
            return self._freeze_listing(self._list_bounded)
        new = self._new_files()
        if is_first:
            self._check_presence(new)
        self._known.update(file.path for file in new)
        self._add(self._positions.own(self._splits_of_files(new)), _sizes(new))
        return False

    def _new_files(self) -> list[ListedFile]:
        try:
            return self._folder.files(self._known)
        except FileNotFoundError:
            return []

    def _freeze_listing(self, list_bounded: Callable[[], Listing]) -> bool:
        """Makes every file of the listing a position, unless the restored positions are the listing."""
        if not self._positions.is_listing_complete:
            listing = self._listing or list_bounded()
            self._check_presence(listing.files)
            self._positions.complete_listing(listing.partition_types)
            sizes = _sizes(listing.files)
            self._add(self._positions.own_of_listing(self._splits_of_files(listing.files), sizes), sizes)
            return True
        self._splits = sorted(self._positions.unfinished(), key=reading_order, reverse=True)
        if self._splits:
            self._check_presence(list_bounded().files)
        return False

    def _check_presence(self, files: Iterable[ListedFile]) -> None:
        """Raises EnvironmentFailure if an unfinished file is missing: its remaining rows would be lost silently."""
        unfinished = {split.path for split in self._positions.unfinished()}
        for path in sorted(unfinished.difference(file.path for file in files)):
            raise missing_file_error(self._folder, path)

    def _add(self, splits: Iterable[Split], sizes: Mapping[str, int]) -> None:
        open_splits = [split for split in splits if not self._positions.is_done(split)]
        for split in open_splits:
            if self._list_bounded is not None or not split.is_whole_file:
                self._positions.add(split, sizes[split.path])
        if open_splits:
            self._splits = sorted([*self._splits, *open_splits], key=reading_order, reverse=True)
            self.discoveries += 1

    def _splits_of_files(self, files: Iterable[ListedFile]) -> list[Split]:
        return [split for file in files for split in self._splits_of(file.path, file.size_bytes)]

    def _splits_of(self, path: str, size_bytes: int) -> Iterable[Split]:
        limit = self._positions.split_bytes
        if limit is None or not (isinstance(self._kind, ScannedFormat) and self._kind.splits_files):
            return (Split(path),)
        before = self._positions.known_size(path)
        if before and before != size_bytes and max(before, size_bytes) > limit:  # its splits are no longer the same
            detail = f"the file has changed since it was read: it has {size_bytes} bytes and had {before}"
            raise DataRejected(f"{self._folder.location}/{path}: {detail}; put new rows into a new file")
        if size_bytes <= limit:
            return (Split(path),)
        return (Split(path, start, min(start + limit, size_bytes)) for start in range(0, size_bytes, limit))


def missing_file_error(folder: InputFolder, path: str) -> EnvironmentFailure:
    return EnvironmentFailure(f"{folder.location}/{path}: the file is gone before it was read to its end")


def _sizes(files: Iterable[ListedFile]) -> dict[str, int]:
    """Bytes of each file, by path."""
    return {file.path: file.size_bytes for file in files}
