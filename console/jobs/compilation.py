"""Compiling a version to its graph in a PySpark stage, and recording the result in its row."""

from pathlib import Path

from django.conf import settings
from django.db.models.functions import Now

from console.jobs import services, stages
from console.jobs.inputs import parse_stored_settings
from console.jobs.models import JobVersion, VersionState


def compile_version(version_id: int) -> None:
    """Compiles a version in state `compiling`. Any other state means a repeated message, which is ignored.

    While storage or a service is unavailable, the version stays in this state, and the reconciler sends a further
    wake-up after a growing pause.
    """
    version = JobVersion.objects.select_related("job").filter(pk=version_id, state=VersionState.COMPILING).first()
    if version is None:
        return
    try:
        graph = stages.run(_stage(version), lambda _: _renew(version))
    except stages.StageInterrupted:
        return
    except stages.StageUnavailable as failed:
        services.postpone_compilation(version.pk, failed.error)
    except stages.StageFailed as failed:
        services.store_rejection(version.pk, failed.error)
    else:
        services.store_graph(version.pk, graph)


def _stage(version: JobVersion) -> stages.StageCommand:
    return stages.StageCommand(
        arguments=[
            "compile",
            *("--pipeline", version.job.pipeline),
            *("--parallelism", str(version.parallelism)),
            *("--max-parallelism", str(version.max_parallelism)),
            *("--columns", str(services.columns_folder(version))),
            *("--mode", parse_stored_settings(version.settings).execution_mode.value),
        ],
        log=Path(settings.WEIR_LOGS) / f"compile-version-{version.pk}.log",
        timeout_s=settings.WEIR_COMPILE_TIMEOUT_S,
        stdin=version.params,
        pipeline=version.job.pipeline,
        package=version.package_id,
        result="graph",
    )


def _renew(version: JobVersion) -> bool:
    """Renews `woken_at`, so that the reconciler sends no new wake-up. False if the version is no longer compiling."""
    return bool(JobVersion.objects.filter(pk=version.pk, state=VersionState.COMPILING).update(woken_at=Now()))
