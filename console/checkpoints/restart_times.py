"""How long the restarts of a job took: from a failure to the first checkpoint of the next attempt."""

from collections.abc import Sequence
from typing import Final

from django.contrib.postgres.fields import ArrayField
from django.db.models import FloatField
from django.db.models.expressions import RawSQL

from console.jobs.models import Job

_MAX_RESTARTS: Final = 10  #: newest failures of the job
_RESTARTS: Final = """
SELECT array_agg((extract(epoch FROM again - ended_at) * 1000)::float8 ORDER BY token DESC)
    FILTER (WHERE again > ended_at)
FROM (
    SELECT a.token, a.ended_at, (
        SELECT triggered_at FROM weir_checkpoint WHERE run_id = a.run_id AND token = (
            SELECT min(token) FROM weir_attempt WHERE run_id = a.run_id AND token > a.token
        ) ORDER BY number LIMIT 1) AS again
    FROM weir_attempt a JOIN weir_run r ON r.id = a.run_id
    WHERE r.job_id = %s AND a.outcome = 'failed' ORDER BY a.token DESC LIMIT %s
) AS failures
"""


def restarts_ms(job_id: int) -> RawSQL:
    """The times in ms of the newest restarts of a job, newest first, as an annotation of any row; null without any."""
    return RawSQL(_RESTARTS, (job_id, _MAX_RESTARTS), ArrayField(FloatField()))  # noqa: S611  # SQL of this module


def read_restarts_ms(job_id: int) -> Sequence[float]:
    return Job.objects.filter(pk=job_id).values_list(restarts_ms(job_id), flat=True).get() or ()
