"""The entity tag of a job, for requests with `If-Match` (RFC 9110, 13.1.1).

The tag covers the facts that users edit, the newest version, and the latest run with its state. Live metrics and
checkpoints are excluded, or every tag would be stale after a second. Tags are weak and compared as such, because a
compressed response is the same response.
"""

from hashlib import blake2s
from http import HTTPStatus

from django.utils.http import parse_etags

from console.accounts.refusals import Refused
from console.jobs.models import Job, JobVersion, Run


def entity_tag(job: Job) -> str:
    """The value of the header `ETag`."""
    version = JobVersion.objects.filter(job=job).order_by("-number").values_list("number", "state").first()
    run = Run.objects.filter(job=job).order_by("-pk").values_list("pk", "state").first()
    fields = (job.name, job.description, job.owner, job.tags, job.runbook, job.archived_at)
    facts = repr((job.pk, fields, version, run))
    return f'W/"{blake2s(facts.encode(), digest_size=12).hexdigest()}"'


def tag_matches(tag: str, header: str) -> bool:
    """Whether the tags in `header` include `tag` or the wildcard `*`."""
    tags = [name.removeprefix("W/") for name in parse_etags(header)]
    return "*" in tags or tag.removeprefix("W/") in tags


def require_match(job: Job, header: str | None) -> None:
    """Compares `If-Match` with the job's tag. Call it while the job's row is locked.

    Raises:
        Refused: 412 with the current tag; the job has changed since the caller read it.
    """
    if header is None:
        return
    tag = entity_tag(Job.objects.get(pk=job.pk))
    if not tag_matches(tag, header):
        detail = "If-Match: the job has changed since it was read. Nothing was done; read it again."
        raise Refused("stale", detail, "If-Match", HTTPStatus.PRECONDITION_FAILED, etag=tag)
