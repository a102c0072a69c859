"""Data files of tables with a transaction log: their names, and the committables that name them.

    part-<job>-<token>-<uid>-<subtask>-<random>-<number>-<n>.parquet

`number` counts the checkpoints with rows of this writer. All files of a number are committed together. The random part
distinguishes writers of runs that have the same names and tokens, such as two runs of `run_local`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from runtime.connectors.names import encode_name
from runtime.connectors.tables.data_folder import DataFolder
from runtime.core.job.ids import Token
from runtime.errors import JobRejected
from runtime.ports import OperatorContext

OWNER: Final = re.compile(r"(?P<job>[A-Za-z0-9_.]+)-(?P<token>\d+)-(?P<uid>[A-Za-z0-9_.]+)-\d+-[0-9a-f]{8}")
FILE_NAME: Final = re.compile(rf"part-(?P<owner>{OWNER.pattern})-(?P<number>\d+)-\d+\.parquet")


@dataclass(frozen=True, slots=True)
class DataFileName:
    """The parts of the name of a data file."""

    name: str
    owner: str
    number: int


def encode_part(part: str) -> str:
    """The name of a job or operator within a file name, encoded injectively by letters, digits, `_` and `.`.

    `encode_name` uses `~`. Delta's log escapes that character, and DataFusion then searches for a file of the escaped
    name.
    """
    return encode_name(part).replace("_", "~5F").replace("~", "_")


def new_owner(context: OperatorContext) -> str:
    """The name of a new writer, unique among all writers of all runs."""
    name = f"{encode_part(context.job)}-{context.token}-{encode_part(context.uid)}-{context.index}"
    return f"{name}-{uuid4().hex[:8]}"


def files_before(folder: DataFolder, job: str, uid: str, token: Token) -> list[DataFileName]:
    """The files in the folder that the sink wrote in attempts before `token`."""
    return _files_of(folder.names(), job, uid, token)


def abort_uploads_before(folder: DataFolder, job: str, uid: str, token: Token) -> None:
    """Ends the uploads of files in progress of attempts before `token`."""
    folder.abort_uploads(lambda name: bool(_files_of([name], job, uid, token)))


def _files_of(all_names: Iterable[str], job: str, uid: str, token: Token) -> list[DataFileName]:
    matches = map(FILE_NAME.fullmatch, all_names)
    sink = (encode_part(job), encode_part(uid))
    names = [name for name in matches if name and name.group("job", "uid") == sink and int(name["token"]) < token]
    return [DataFileName(name[0], name["owner"], int(name["number"])) for name in names]


def check_committable(committable: Any, job: str) -> Mapping[str, Any]:
    """The committable, if its file names are valid and of this job: a manifest is not trusted.

    Raises:
        JobRejected: the committable is invalid; the message quotes its owner.
    """
    try:
        owner = OWNER.fullmatch(committable["owner"])
        names = [FILE_NAME.fullmatch(file["path"]) for file in committable["files"]]
        expected = (committable["owner"], str(committable["number"]))
        is_valid = owner is not None and owner["job"] == encode_part(job)
        is_valid = is_valid and all(name is not None and name.group("owner", "number") == expected for name in names)
        is_valid = is_valid and all(map(_has_proof, committable["files"]))
    except (KeyError, TypeError):
        is_valid = False
    if not is_valid:
        detail = f"a checkpoint names files to commit that this sink has not written for job {job}: {committable!r}"
        raise JobRejected("bad-committable", "sink", detail)
    content: Mapping[str, Any] = committable
    return content


def own_committables(committables: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Without those of a sink of another kind, which may have written older checkpoints."""
    return [each for each in committables if isinstance(each, Mapping) and {"owner", "number"} <= each.keys()]


def _has_proof(file: Mapping[str, Any]) -> bool:
    """Whether a file has the proof of its content, see `DataFolder`."""
    return type(file["bytes"]) is int and (type(file.get("crc32")) is int or type(file.get("etag")) is str)


def newest_numbers(committables: list[Mapping[str, Any]]) -> dict[str, int]:
    """By owner, the newest number of the committables."""
    numbers: dict[str, int] = {}
    for each in committables:
        numbers[each["owner"]] = max(each["number"], numbers.get(each["owner"], 0))
    return numbers
