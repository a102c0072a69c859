"""Preparing a run: a stage computes what its sources read from Spark, once per version.

The run is leased while that happens, as it is while it runs, so that a repeated message starts no second Spark.
"""

from pathlib import Path

from django.conf import settings

from console.jobs import runs, services, stages
from console.jobs.holding import new_owner, renew
from console.jobs.models import JobVersion, Run


def prepare_run(run_id: int) -> None:
    """Materialise what is missing and queue the run. Losing the claim is a normal return."""
    owner = new_owner()
    if not runs.take_preparation(run_id, owner):
        return
    version = Run.objects.select_related("version__job").get(pk=run_id).version
    try:
        stages.run(_stage(version, run_id), lambda: renew(run_id, owner))
    except stages.StageCut:
        runs.leave_preparation(run_id, owner=owner)
    except stages.StageFailed as failed:
        runs.give_up(run_id, _failure(version, failed), owner)
    else:
        services.mark_prepared(version.pk)
        runs.prepared(run_id, owner)


def _stage(version: JobVersion, run_id: int) -> stages.Stage:
    return stages.Stage(
        arguments=[
            "materialise",
            *("--pipeline", version.job.pipeline),
            *("--inputs", str(services.inputs_folder(version))),
            *("--application", f"weir: run {run_id}, tables"),
        ],
        log=Path(settings.WEIR_LOGS) / f"materialise-version-{version.pk}.log",
        timeout_s=settings.WEIR_MATERIALISE_TIMEOUT_S,
        stdin=version.params,
    )


def _failure(version: JobVersion, failed: stages.StageFailed) -> dict[str, str]:
    return {
        "code": failed.error["code"],
        "message": f"The inputs of version {version.number} could not be prepared: {failed.error['detail']}",
        "detail": failed.error.get("log", ""),
    }
