"""The entity tag of a job, for requests with `If-Match` (RFC 9110, 13.1.1).

The tag covers the facts that users edit, the newest version, and the latest run with its state. Live metrics and
checkpoints are excluded, or every tag would be stale after a second.

A part after a hyphen covers the health of the job, without the time of its check. Only `If-None-Match` compares it: an
edit does not depend on it.

Tags are strong, and `If-Match` compares them as such. Compression would make a tag weak, so a response with a tag has
`Cache-Control: no-transform` (`console.accounts.middleware.CompressionMiddleware`).
"""

import re
from collections.abc import Mapping
from hashlib import blake2s
from http import HTTPStatus
from typing import Any

from django.utils.http import parse_etags

from console.accounts.refusals import Refused
from console.jobs.models import Job, JobVersion, Run


def entity_tag(job: Job, health: Mapping[str, Any] | None = None) -> str:
    """The value of the header `ETag`. `health`: the health that the response shows; None: it shows none."""
    version = JobVersion.objects.filter(job=job).order_by("-number").values_list("number", "state").first()
    run = Run.objects.filter(job=job).order_by("-pk").values_list("pk", "state").first()
    fields = (
        job.name, job.description, job.owner, job.tags, job.runbook, job.max_silence_s, job.review_policy,
        job.archived_at,
    )  # fmt: skip
    facts = repr((job.pk, fields, version, run))
    verdict = [item for item in (health or {}).items() if item[0] != "checked_at"]
    return f'"{_digest(facts)}{f"-{_digest(repr(verdict))}" if verdict else ""}"'


def _digest(facts: str) -> str:
    return blake2s(facts.encode(), digest_size=12).hexdigest()


def is_known(tag: str, header: str) -> bool:
    """Whether the tags of an `If-None-Match` header include `tag` or the wildcard `*`, by weak comparison."""
    tags = [name.removeprefix("W/") for name in parse_etags(header)]
    return "*" in tags or tag in tags


def require_match(job: Job, header: str | None) -> None:
    """Compares `If-Match` with the job's tag, by strong comparison. Call it while the job's row is locked.

    Raises:
        Refused: 412 with the current tag; the job has changed since the caller read it.
    """
    if header is None:
        return
    tag = entity_tag(Job.objects.get(pk=job.pk))
    tags = parse_etags(re.sub(r"-[0-9a-f]+\"", '"', header))
    if "*" not in tags and tag not in tags:
        detail = "If-Match: the job has changed since it was read. Nothing was done; read it again."
        raise Refused("stale", detail, "If-Match", HTTPStatus.PRECONDITION_FAILED, etag=tag)
