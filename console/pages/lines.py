"""Lists on the page of a job that come with the row of its latest run, as JSON, and so take no query of their own."""

from datetime import datetime
from functools import cache
from typing import Any

import msgspec
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import F, OuterRef, QuerySet, Subquery
from django.db.models.functions import JSONObject

from console.checkpoints.models import Checkpoint, noun
from console.jobs.attempts import with_numbers
from console.jobs.models import Attempt


class AttemptLine(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt, without the details of its failure. `number`: within the run.

    `restored_number` and `restored_kind`: as in `RunLine`.
    """

    pk: int
    number: int
    token: int
    started_at: datetime | None
    ended_at: datetime | None
    outcome: str
    reason: str
    restored_number: int | None
    restored_kind: str | None
    first_checkpoint_at: datetime | None  #: trigger of the first checkpoint of the attempt

    @property
    def restored(self) -> str:
        """The checkpoint or savepoint, with its number; "" if none is recorded."""
        return f"{noun(self.restored_kind)} {self.restored_number}" if self.restored_kind else ""


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `restored_pk`, `restored_number` and `restored_kind` are of the checkpoint that it restored, or None."""

    pk: int
    state: str
    version_number: int
    parallelism: int
    attempt_count: int
    restored_pk: int | None
    restored_number: int | None
    restored_kind: str | None
    restore_path: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def restored_noun(self) -> str:
        return noun(self.restored_kind) if self.restored_kind else ""


@cache
def attempt_lines(size: int) -> ArraySubquery:
    """The newest attempts of a run: an annotation of runs."""
    checkpoints = Checkpoint.objects.filter(run=OuterRef("run"), token=OuterRef("token")).order_by("number")
    attempts = Attempt.objects.filter(run=OuterRef("pk")).order_by("-token")
    first_checkpoint_at = Subquery(checkpoints.values("triggered_at")[:1])
    newest = with_numbers(attempts).annotate(first_checkpoint_at=first_checkpoint_at)
    columns = {name: name for name in AttemptLine.__struct_fields__}
    columns |= {f"restored_{name}": f"restored_checkpoint__{name}" for name in ("number", "kind")}
    return _lines(newest, size, **columns)


def run_lines(rows: QuerySet[Any], size: int) -> ArraySubquery:
    """The first of `rows`, with `attempt_count`: an annotation of any row."""
    columns = {name: name for name in RunLine.__struct_fields__}
    columns["version_number"] = "version__number"
    columns |= {f"restored_{name}": f"restore_checkpoint__{name}" for name in ("pk", "number", "kind")}
    return _lines(rows, size, **columns)


def _lines(rows: QuerySet[Any], size: int, **columns: str) -> ArraySubquery:
    line = JSONObject(**{name: F(column) for name, column in columns.items()})
    return ArraySubquery(rows.values(line=line)[:size])
