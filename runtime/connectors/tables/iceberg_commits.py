"""The record of a sink's commits in the properties of an Iceberg table.

Snapshots expire, so their summaries cannot prove that files were committed. The property `weir.commits.<job>.<uid>`
does: by writer, the number of its last committed files. Each change of the record is part of a commit that also adds a
snapshot. Two commits that are based on the same snapshot exclude each other, so check and commit are atomic.

The record names the newest attempt too. A commit of an older attempt is refused. When an attempt begins, the record
forgets writers of older attempts whose output no retained manifest names.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from runtime.connectors.tables.data_files import OWNER, encode_part
from runtime.core.job.ids import Token
from runtime.errors import EnvironmentFailure, JobRejected

_PREFIX: Final = "weir.commits."


@dataclass(frozen=True, slots=True)
class IcebergCommitRecord:
    """The commits of a sink to a table.

    Args:
        key: property of the table.
        token: the newest attempt that has written to the table.
        forgotten: the newest attempt of which writers have been forgotten; 0: none.
        numbers: by writer, the number of its last committed files; 0: none yet.
    """

    key: str
    token: int = 0
    forgotten: int = 0
    numbers: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Any, job: str, uid: str) -> Self:
        """The record in the table; `job` and `uid` as parts of file names (`encode_part`)."""
        key = f"{_PREFIX}{job}.{uid}"
        text = table.properties.get(key)
        if text is None:
            return cls(key)
        try:
            record = json.loads(text)
            numbers = {str(owner): int(number) for owner, number in record["numbers"].items()}
            return cls(key, int(record["token"]), int(record["forgotten"]), numbers)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EnvironmentFailure(f"{'.'.join(table.name())}: the property {key} is damaged: {error}") from error

    @classmethod
    def of_sink(cls, table: Any, job: str, uid: str) -> Self:
        return cls.of(table, encode_part(job), encode_part(uid))

    @property
    def text(self) -> str:
        return json.dumps({"token": self.token, "forgotten": self.forgotten, "numbers": self.numbers}, sort_keys=True)

    def is_committed(self, committable: Mapping[str, Any]) -> bool:
        """Whether the files of the committable were committed.

        Raises:
            JobRejected: the record has forgotten the writer.
        """
        owner = committable["owner"]
        if owner not in self.numbers and token_of(owner) <= self.forgotten:
            problem = f"the table no longer records whether output of attempt {token_of(owner)} was committed"
            raise JobRejected("forgotten-commit", "sink", f"{problem}: restore a newer checkpoint or savepoint")
        return self.is_settled(owner, committable["number"])

    def is_settled(self, owner: str, number: int) -> bool:
        """Whether files of the writer were committed, or are of a forgotten writer, which has no leftovers."""
        if owner in self.numbers:
            return number <= self.numbers[owner]
        return token_of(owner) <= self.forgotten

    def refuse_older(self, token: Token) -> None:
        """Raises JobRejected if `token` is of an older attempt than the newest one that has written to the table."""
        if token < self.token:
            problem = f"attempt {token} must not commit: attempt {self.token} of the job has written to the table"
            remedy = f"if that attempt is of a former installation, remove the table's property {self.key}"
            raise JobRejected("superseded", "sink", f"{problem}; {remedy}")

    def after(self, numbers: Mapping[str, int], token: Token) -> "IcebergCommitRecord":
        """The record once the files up to `numbers` are committed by the attempt `token`."""
        newest = {owner: max(number, self.numbers.get(owner, 0)) for owner, number in numbers.items()}
        return IcebergCommitRecord(self.key, max(token, self.token), self.forgotten, {**self.numbers, **newest})

    def without_older(self, token: Token, keep: Collection[str]) -> "IcebergCommitRecord":
        """The record without writers of attempts before `token`, except the writers `keep`."""
        numbers = {owner: number for owner, number in self.numbers.items() if owner in keep or token_of(owner) >= token}
        pending = {owner: 0 for owner in keep if owner not in numbers}
        return IcebergCommitRecord(
            self.key, max(token, self.token), max(token - 1, self.forgotten), {**numbers, **pending}
        )


def token_of(owner: str) -> int:
    match = OWNER.fullmatch(owner)
    assert match is not None, "checked before"
    return int(match["token"])
