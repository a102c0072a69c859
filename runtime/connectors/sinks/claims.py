"""Claims: the rows of a file that attempts copy become visible in a single file of a folder.

Checkpoints name hidden files: files in progress, and small files that wait to be merged. Each attempt that restores
such a checkpoint copies them, so after several restores several files hold the same rows. The origin of the rows is the
hidden file into which they were first written. Before a file becomes visible, its commit claims the origins of its
rows:

    .claims/<hidden name of the origin>    JSON: the committable whose file has the claim

- A claim is made by an atomic rename, so of two files with rows of the same origin only one becomes visible, also if a
  process of an older attempt commits the other at the same time. The second commit is refused.
- A restore that finds the claim of another file does not copy the rows. If they are not visible yet, the clean-up
  before the attempt completes their commit: a claim is made only with a permit.
- A file that was never copied gives its claim back once the commit log names it. Its hidden name is gone by then, so no
  later attempt can copy it; a copy that an older attempt had made finds it in the log.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec

from runtime.access.data_roots import CheckedFolder, DataRoots
from runtime.connectors.file_names import HIDDEN_NAME
from runtime.durable import make_folder, name_write_errors, rename_without_replacing, sync_path
from runtime.errors import CorruptState

#: How the content of a file came about: hidden files with lengths in bytes, which ascend. The content up to the first
#: length was written into the first file, the origin; the next file begins as a copy of it, and so on.
Contents = dict[str, int]

CLAIMS_FOLDER: Final = ".claims"
_TEMPORARY_NAME: Final = re.compile(rf"(?P<claimant>{HIDDEN_NAME.pattern})\.[0-9a-f]{{32}}\.tmp")


class Claim(msgspec.Struct, frozen=True):
    """`file`: the committable with the claim; `checkpoint`: its checkpoint."""

    file: Mapping[str, Any]
    checkpoint: int


class Claims:
    """The claims in the output folder `output`."""

    def __init__(self, output: Path, roots: DataRoots | None = None) -> None:
        self._folder = CheckedFolder.of("path", output / CLAIMS_FOLDER, roots)

    def find(self, origin: str) -> Claim | None:
        """The claim on `origin`. Raises CorruptState, which names the file, if it is damaged."""
        path = self._folder.path / origin
        try:
            return msgspec.json.decode(path.read_bytes(), type=Claim)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise CorruptState(str(path), f"not a claim: {error}") from error

    def origins(self) -> Iterator[str]:
        """The claimed origins."""
        for path in self._folder.path.iterdir() if self._folder.path.is_dir() else ():
            if HIDDEN_NAME.fullmatch(path.name):
                yield path.name

    def acquire(self, origin: str, claim: Claim) -> Claim:
        """Claims `origin` durably, unless it is claimed. Returns the claim that stands."""
        standing_claim = self.find(origin)
        while standing_claim is None:
            make_folder(self._folder.path.parent)
            self._folder.make()
            path = self._folder.path / origin
            temporary = f"{claim.file['pending']}.{uuid4().hex}.tmp"
            with name_write_errors(path):
                with os.fdopen(self._folder.open_to_write(temporary, os.O_EXCL), "wb") as file:
                    file.write(msgspec.json.encode(claim))
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    rename_without_replacing(self._folder.path / temporary, path)
                    standing_claim = claim
                except FileExistsError:
                    (self._folder.path / temporary).unlink()
                    standing_claim = self.find(origin)
                sync_path(self._folder.path)
        return standing_claim

    def release(self, origins: Iterable[str]) -> None:
        for origin in origins:
            (self._folder.path / origin).unlink(missing_ok=True)

    def clean(self, owner: tuple[str, str], token: int, keep: Iterable[str]) -> None:
        """Removes claims of attempts before `token` on origins that are not in `keep`, and their temporary files.

        Args:
            owner: job and sink, spelled as in file names.
        """
        names = set(keep)
        for path in self._folder.path.iterdir() if self._folder.path.is_dir() else ():
            origin, temporary = HIDDEN_NAME.fullmatch(path.name), _TEMPORARY_NAME.fullmatch(path.name)
            match = origin or temporary
            if match and match.group("job", "uid") == owner and int(match["token"]) < token and path.name not in names:
                path.unlink(missing_ok=True)


def contents_of(hidden: str, nbytes: int, copied: Contents) -> Contents:
    """The contents of the file `hidden` of `nbytes` bytes, which begins as a copy of a file with contents `copied`."""
    return copied if nbytes in copied.values() else copied | {hidden: nbytes}


def origin_of(contents: Contents) -> str:
    return min(contents, key=contents.__getitem__)


def shared_bytes(left: Contents, right: Contents) -> int:
    """The number of bytes that both contents have in common at their beginning."""
    shared = 0
    for file, other_file in zip(sorted(left, key=left.__getitem__), sorted(right, key=right.__getitem__), strict=False):
        if file != other_file:
            break
        shared = min(left[file], right[file])
        if left[file] != right[file]:
            break
    return shared


def origins_of(file: Mapping[str, Any]) -> dict[str, Contents]:
    """The contents with the rows of a committable, by origin; empty if no checkpoint named its file in progress."""
    return {origin_of(contents): contents for contents in file.get("parts", ())}
