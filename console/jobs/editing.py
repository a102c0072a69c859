"""Changes of a definition after its creation: facts about a job, its archive, and versions made equal or deleted."""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from django.db import IntegrityError, transaction
from django.db.models.functions import Greatest, Now

from console.accounts.models import User
from console.accounts.refusals import Conflict, InvalidField
from console.accounts.rights import require_define
from console.accounts.storable import text_problem
from console.jobs.changes import MAX_REASON_LENGTH, announce
from console.jobs.models import Job, JobVersion, ReviewPolicy, Run, VersionState
from console.jobs.services import (
    MAX_DESCRIPTION_LENGTH,
    MAX_MESSAGE_LENGTH,
    create_job,
    create_version,
    lock_job,
    parameter_schema,
    require_name,
)
from runtime.access.redaction import mask
from runtime.core.job.lifecycle import TERMINAL_STATES

MAX_OWNER_LENGTH: Final = 100
MAX_TAGS: Final = 20
MAX_TAG_LENGTH: Final = 40
MAX_LINK_LENGTH: Final = 500
MIN_SILENCE_S: Final = 15  #: three intervals of the history
MAX_SILENCE_S: Final = 86_400


def edit_job(
    user: User,
    job: Job,
    *,
    name: str | None = None,
    description: str | None = None,
    owner: str | None = None,
    tags: Sequence[str] | None = None,
    runbook: str | None = None,
    max_silence_s: int | None = None,
    review_policy: str | None = None,
    reason: str = "",
    request_key: str | None = None,
) -> Job:
    """Changes the given facts; None keeps the present value. State belongs to the job, so a new name keeps it.

    Args:
        reason: why, for the ledger.
        request_key: an idempotency key for the entry in the ledger.

    Raises:
        InvalidField: names the fact that cannot be stored.
        Conflict: another job has the name.
    """
    require_define(user)
    reason = _text("reason", reason, MAX_REASON_LENGTH)
    changes: dict[str, Any] = {}
    if name is not None:
        changes["name"] = require_name(name)
    if description is not None:
        changes["description"] = _text("description", description, MAX_DESCRIPTION_LENGTH)
    if owner is not None:
        changes["owner"] = _line("owner", owner, MAX_OWNER_LENGTH)
    if tags is not None:
        changes["tags"] = checked_tags(tags)
    if runbook is not None:
        changes["runbook"] = _link(runbook)
    if max_silence_s is not None:
        changes["max_silence_s"] = _silence(max_silence_s)
    if review_policy is not None:
        changes["review_policy"] = ReviewPolicy(review_policy).value
    try:
        with transaction.atomic():
            lock_job(job)
            before = Job.objects.filter(pk=job.pk).values(*changes).get() if changes else {}
            changed = {name: (before[name], after) for name, after in changes.items() if before[name] != after}
            if changed:
                Job.objects.filter(pk=job.pk).update(**changes)
                announce("edit", user, job, changed, reason, request_key)
    except IntegrityError as error:
        if "name" not in changes:
            raise
        raise Conflict("name-taken", f"name: another job is called {changes['name']!r}.", field="name") from error
    job.refresh_from_db()
    return job


def change_tags(
    user: User,
    job: Job,
    *,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    reason: str = "",
    request_key: str | None = None,
) -> bool:
    """Adds tags to those of the job, or removes some of them. False if the job had them so already.

    Raises:
        InvalidField: a tag cannot be stored, or there would be too many.
    """
    require_define(user)
    removed = set(checked_tags(remove))
    with transaction.atomic():
        lock_job(job)
        present: list[str] = Job.objects.values_list("tags", flat=True).get(pk=job.pk)
        tags = (tag for tag in present if tag not in removed)
        now: list[str] = edit_job(user, job, tags=[*tags, *add], reason=reason, request_key=request_key).tags
        return now != present


def archive_job(user: User, job: Job, *, archived: bool, reason: str = "") -> None:
    """Archives a job or brings it back. An archived job cannot be started or changed, and lists leave it out.

    Raises:
        InvalidField: the reason cannot be stored.
        Conflict: a run of the job has not ended.
    """
    require_define(user)
    reason = _text("reason", reason, MAX_REASON_LENGTH)
    with transaction.atomic():
        lock_job(job)
        active = Run.objects.filter(job=job).exclude(state__in=TERMINAL_STATES).first()
        if archived and active is not None:
            raise Conflict("run-active", f"Run {active.pk} is {active.state}; end it before the job is archived.")
        if Job.objects.filter(pk=job.pk, archived_at__isnull=archived).update(archived_at=Now() if archived else None):
            announce("edit", user, job, {"archived": (not archived, archived)}, reason)


def make_equal(user: User, version: JobVersion, request_key: str | None = None) -> JobVersion:
    """A new version with the parameters, settings and key groups of `version`, an earlier version of the same job.

    The newest version, if it has these values already.
    """
    message = f"Equal to version {version.number}"
    return create_version(
        user, version.job, **_values_like(version), message=message, request_key=request_key, skip_if_equal=True
    )


def duplicate_definition(user: User, version: JobVersion, *, name: str, description: str = "") -> Job:
    """A new job with the facts of the job of `version` and the values of `version`, without state.

    Raises:
        Refused: the job or its version would be refused. Neither is created.
    """
    source = version.job
    with transaction.atomic():
        job = create_job(user, name=name, pipeline=source.pipeline, description=description or source.description)
        take_facts(source, job)
        message = f"Duplicate of version {version.number} of {source.name}"[:MAX_MESSAGE_LENGTH]
        create_version(user, job, **_values_like(version), message=message)
    return job


def take_facts(source: Job, job: Job) -> None:
    """Gives `job` the owner, tags, runbook and limit of silence of `source`."""
    facts = ("owner", "tags", "runbook", "max_silence_s")
    for name in facts:
        setattr(job, name, getattr(source, name))
    job.save(update_fields=facts)


def _values_like(version: JobVersion) -> dict[str, Any]:
    """Arguments of `create_version`. Masks stand for the secrets of `version`, which may be literals."""
    return {
        "parallelism": version.parallelism,
        "max_parallelism": version.max_parallelism,
        "params": mask(version.params, parameter_schema(version)),
        "settings": version.settings,
        "like": version,
    }


def deletion_refusal(version: JobVersion, *, has_run: bool) -> str:
    """Why a version cannot be deleted; "" if it can be."""
    if has_run:
        return f"Version {version.number} has run: its runs and checkpoints refer to it."
    if version.state == VersionState.READY or (version.is_active and not version.failed_attempts):
        return f"Version {version.number} is {version.state}; only a rejected version can be deleted."
    return ""


def delete_version(user: User, version: JobVersion) -> None:
    """Deletes a version that was rejected and never ran. Its number is not used again.

    A version whose compilation has failed and is repeated counts as rejected: an outage may have no end.

    Raises:
        Conflict: the version has run, or is not rejected.
    """
    require_define(user)
    with transaction.atomic():
        lock_job(version.job)
        current = JobVersion.objects.select_for_update().filter(pk=version.pk).first()  # it may have been compiled
        if current is None:
            return
        if refused := deletion_refusal(current, has_run=version.runs.exists()):
            raise Conflict("cannot-delete", refused)
        Job.objects.filter(pk=version.job_id).update(last_version=Greatest("last_version", version.number))
        announce("define", user, version.job, {f"version {version.number}": (version.state, None)})
        version.delete()


def _text(field: str, value: str, limit: int) -> str:
    text = value.strip()
    if why := text_problem(text):
        raise InvalidField(field, why)
    if len(text) > limit:
        raise InvalidField(field, f"must have {limit} characters at most")
    return text


def _line(field: str, value: str, limit: int) -> str:
    text = _text(field, value, limit)
    if text and not text.isprintable():
        raise InvalidField(field, "must be one line of printable characters")
    return text


def checked_tags(texts: Sequence[str]) -> list[str]:
    """The tags in order, each once. A comma separates tags in forms and addresses, so no tag has one."""
    tags = sorted({tag for text in texts if (tag := _line("tags", text, MAX_TAG_LENGTH).lower())})
    if any("," in tag for tag in tags):
        raise InvalidField("tags", "must have no commas")
    if len(tags) > MAX_TAGS:
        raise InvalidField("tags", f"at most {MAX_TAGS} tags")
    return tags


def _silence(seconds: int) -> int:
    if seconds and not MIN_SILENCE_S <= seconds <= MAX_SILENCE_S:
        raise InvalidField("max_silence_s", f"must be 0, or between {MIN_SILENCE_S} and {MAX_SILENCE_S}")
    return seconds


def _link(value: str) -> str:
    link = _line("runbook", value, MAX_LINK_LENGTH)
    if link and (urlsplit(link).scheme not in ("http", "https") or not urlsplit(link).hostname):
        raise InvalidField("runbook", "must be an address that begins with http:// or https://")
    return link
