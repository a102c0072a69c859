"""The entity tag of a job: what a request with `If-Match` was made in view of (RFC 9110, 13.1.1).

It stands for the definition and for what runs: description, newest version, latest run and its state. Live numbers and
checkpoints are no part of it, or every tag would be stale after a second. Tags are weak and compared as weak ones: an
answer that is compressed on its way is the same answer.
"""

from hashlib import blake2s
from http import HTTPStatus

from django.utils.http import parse_etags

from console.accounts.refusals import Refused
from console.jobs.models import Job, JobVersion, Run


def tag_of(job: Job) -> str:
    """As it stands in the header `ETag`."""
    version = JobVersion.objects.filter(job=job).order_by("-number").values_list("number", "state").first()
    run = Run.objects.filter(job=job).order_by("-pk").values_list("pk", "state").first()
    facts = repr((job.pk, job.name, job.description, version, run))
    return f'W/"{blake2s(facts.encode(), digest_size=12).hexdigest()}"'


def is_named(tag: str, header: str) -> bool:
    """Whether the list of tags in `header` names `tag`, or any tag at all (`*`)."""
    given = [one.removeprefix("W/") for one in parse_etags(header)]
    return "*" in given or tag.removeprefix("W/") in given


def must_match(job: Job, header: str | None) -> None:
    """Call it while the job's row is locked.

    Raises:
        Refused: 412, with the present tag. The job has changed since the caller read it.
    """
    if header is None:
        return
    tag = tag_of(Job.objects.get(pk=job.pk))
    if not is_named(tag, header):
        detail = "If-Match: the job has changed since it was read. Nothing was done; read it again."
        raise Refused("stale", detail, "If-Match", HTTPStatus.PRECONDITION_FAILED, etag=tag)
