"""The differences between two versions of a job: parameters, settings, parallelism, and operators of the graph."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from console.jobs.masking import mask_settings
from console.jobs.models import Job, JobVersion
from runtime.access.redaction import Schema, mask
from runtime.core.job.settings import JobSettings

ABSENT: Final = None  #: value of a line whose name a version does not have
_DEFAULT_SETTINGS: Final[dict[str, Any]] = msgspec.to_builtins(JobSettings())  #: of settings that a version lacks
OTHER_VALUE: Final = "another value, which is secret"


@dataclass(frozen=True, slots=True)
class Difference:
    """`before` and `after` are JSON values, with secrets masked; None: absent."""

    part: str  #: "parameter", "setting", "parallelism" or "operator"; "version": its package or state
    name: str
    before: Any
    after: Any


def compared_versions(job: Job, base: int | None, other: int | None) -> tuple[JobVersion | None, JobVersion | None]:
    """The two versions with these numbers. Without both numbers the newest two; None where the job has none."""
    if base is not None and other is not None:
        versions = {row.number: row for row in job.versions.filter(number__in=(base, other))}
        return versions.get(base), versions.get(other)
    newest = list(job.versions.order_by("-number")[:2])
    return (newest[1], newest[0]) if len(newest) == 2 else (None, None)


def differences(base: JobVersion, other: JobVersion, schema: Schema) -> tuple[Difference, ...]:
    """The changes from `base` to `other`. `schema`: of the pipeline, as it is offered now."""
    return tuple(_differences(base, other, schema))


def _differences(base: JobVersion, other: JobVersion, schema: Schema) -> Iterator[Difference]:
    for name in ("parallelism", "max_parallelism"):
        if getattr(base, name) != getattr(other, name):
            yield Difference("parallelism", name, getattr(base, name), getattr(other, name))
    if base.package_id != other.package_id:
        yield Difference("version", "package", base.package_id, other.package_id)
    sides = mask(base.params, base.parameter_schema(schema)), mask(other.params, other.parameter_schema(schema))
    for name in _changed(base.params, other.params):
        before, after = (params.get(name, ABSENT) for params in sides)
        yield Difference("parameter", name, before, OTHER_VALUE if before == after else after)
    before, after = ({**_DEFAULT_SETTINGS, **version.settings} for version in (base, other))
    sides = mask_settings(before), mask_settings(after)
    for name in _changed(before, after):
        first, second = (settings.get(name, ABSENT) for settings in sides)
        yield Difference("setting", name, first, OTHER_VALUE if first == second else second)
    operators = _operators(base), _operators(other)
    if None not in operators:
        first, second = (side or {} for side in operators)
        for uid in _changed(first, second):
            yield Difference("operator", uid, first.get(uid, ABSENT), second.get(uid, ABSENT))


def _changed(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    return [name for name in {**first, **second} if first.get(name, ABSENT) != second.get(name, ABSENT)]


def _operators(version: JobVersion) -> dict[str, str] | None:
    """The role and name of each operator by uid; None for a version that was not compiled."""
    if version.graph is None:
        return None
    return {row["uid"]: f"{row['role']} {row['name']}" for row in version.graph.get("operators", ())}
