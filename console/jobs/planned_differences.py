"""The differences that a version would make, before it is created."""

from collections.abc import Mapping
from typing import Any

from console.accounts.models import User
from console.accounts.rights import require_define
from console.jobs.code import package_change
from console.jobs.differences import ABSENT, Difference, differences
from console.jobs.models import Job, JobVersion, VersionState
from console.jobs.services import checked_values, newest_version, pipeline_schema


def planned_differences(user: User, job: Job, values: Mapping[str, Any]) -> tuple[Difference, ...]:
    """The changes from the newest version of `job` to a version with `values`, which is not created.

    For a job without versions they are its parameters, and its settings that are no defaults. A version with the values
    of a rejected one differs in its state. A package that was installed since the newest was compiled is a difference
    too. It needs the permission to define: a comparison with a secret reveals whether a guess of it is right.

    Raises:
        Refused: not permitted, or the version would be refused.
    """
    require_define(user)
    newest = newest_version(job)
    planned = JobVersion(job=job, **checked_values(job, newest, **values))
    like = newest or planned
    base = JobVersion(
        job=job, parallelism=like.parallelism, max_parallelism=like.max_parallelism,
        package_id=like.package_id, params=newest.params if newest else {}, settings=newest.settings if newest else {},
    )  # fmt: skip
    changes = differences(base, planned, pipeline_schema(job.pipeline))
    if not changes and (newest is None or newest.state == VersionState.REJECTED):
        return (Difference("version", "state", newest.state if newest else ABSENT, VersionState.COMPILING),)
    change = None if newest is None else package_change(newest)
    return changes if change is None else (*changes, Difference("version", "package", change.before, change.after))
