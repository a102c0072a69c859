"""The differences between two versions of a job: parameters, settings, parallelism, and operators of the graph."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from console.accounts.models import User
from console.accounts.rights import require_define
from console.jobs.inputs import parse_settings
from console.jobs.models import Job, JobVersion
from console.jobs.services import checked_values, newest_version, pipeline_schema
from runtime.redaction import Schema, mask

ABSENT: Final = None  #: value of a line whose name a version does not have
OTHER_VALUE: Final = "another value, which is secret"


@dataclass(frozen=True, slots=True)
class Difference:
    """`before` and `after` are JSON values, with secrets masked; None: absent."""

    part: str  #: "parameter", "setting", "parallelism" or "operator"
    name: str
    before: Any
    after: Any


def differences(base: JobVersion, other: JobVersion, schema: Schema) -> tuple[Difference, ...]:
    """The changes from `base` to `other`. `schema` is that of the pipeline's parameters."""
    return tuple(_differences(base, other, schema))


def planned_differences(user: User, job: Job, values: Mapping[str, Any]) -> tuple[Difference, ...]:
    """The changes from the newest version of `job` to a version with `values`, which is not created.

    For a job without versions they are its parameters and settings. It needs the permission to define: a comparison
    with a secret reveals whether a guess of it is right.

    Raises:
        Refused: not permitted, or the version would be refused.
    """
    require_define(user)
    newest = newest_version(job)
    planned = JobVersion(job=job, **checked_values(job, newest, **values))
    like = newest or planned
    filled = msgspec.to_builtins(parse_settings(newest.settings)) if newest else {}
    base = JobVersion(
        job=job, parallelism=like.parallelism, max_parallelism=like.max_parallelism,
        params=newest.params if newest else {}, settings=filled,
    )  # fmt: skip
    return differences(base, planned, pipeline_schema(job.pipeline))


def _differences(base: JobVersion, other: JobVersion, schema: Schema) -> Iterator[Difference]:
    for name in ("parallelism", "max_parallelism"):
        if getattr(base, name) != getattr(other, name):
            yield Difference("parallelism", name, getattr(base, name), getattr(other, name))
    shown = mask(base.params, schema), mask(other.params, schema)
    for name in _changed(base.params, other.params):
        before, after = (params.get(name, ABSENT) for params in shown)
        yield Difference("parameter", name, before, OTHER_VALUE if before == after else after)
    for name in _changed(base.settings, other.settings):
        yield Difference("setting", name, base.settings.get(name, ABSENT), other.settings.get(name, ABSENT))
    operators = _operators(base), _operators(other)
    if None not in operators:
        first, second = (found or {} for found in operators)
        for uid in _changed(first, second):
            yield Difference("operator", uid, first.get(uid, ABSENT), second.get(uid, ABSENT))


def _changed(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    return [name for name in {**first, **second} if first.get(name, ABSENT) != second.get(name, ABSENT)]


def _operators(version: JobVersion) -> dict[str, str] | None:
    """The role and name of each operator by uid; None for a version that was not compiled."""
    if version.graph is None:
        return None
    return {row["uid"]: f"{row['role']} {row['name']}" for row in version.graph.get("operators", ())}
