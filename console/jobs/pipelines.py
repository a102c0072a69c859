"""The registry of pipelines as rows, refreshed from `spark_jobs`, so that forms need not import it."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from console import wakeups
from console.jobs import stages
from console.jobs.models import Pipeline

_TIMEOUT_S = 180  # a package whose import hangs takes `runtime.dataflow.pipelines.IMPORT_TIMEOUT_S` of this time
_SYNC_PAUSE_S = 5  #: least age of the rows at which a request reads the registry again


class OfferedPipeline(msgspec.Struct, frozen=True):
    """A pipeline as `spark_jobs pipelines` prints it."""

    name: str
    description: str = ""
    schema: dict[str, Any] = {}
    queries: dict[str, str] = {}
    error: str = ""  #: why the pipeline cannot be used


def sync() -> list[str]:
    """Reads the registry and replaces the rows. Returns the names of the pipelines.

    Raises:
        StageFailed: the registry cannot be read; the rows stay as they were.
    """
    log = Path(settings.WEIR_LOGS) / "stage-pipelines.log"
    printed = stages.run(stages.StageCommand(arguments=["pipelines"], log=log, timeout_s=_TIMEOUT_S))
    try:
        offered = msgspec.convert(printed, list[OfferedPipeline])
    except msgspec.ValidationError as error:
        raise stages.StageFailed("stage-failed", f"pipelines: {error}.") from error
    replace(offered)
    return [pipeline.name for pipeline in offered]


def request_sync() -> None:
    """Wakes a worker to read the registry, unless it was read in the last `_SYNC_PAUSE_S`."""
    if not Pipeline.objects.filter(updated_at__gt=Now() - timedelta(seconds=_SYNC_PAUSE_S)).exists():
        wakeups.send(wakeups.PIPELINES_TASK)


def replace(offered: list[OfferedPipeline]) -> None:
    """Makes the rows equal to `offered`. Jobs of a removed pipeline keep its name but get no new versions."""
    with transaction.atomic():
        for pipeline in offered:
            columns = {**msgspec.structs.asdict(pipeline), "schema": _with_order(pipeline.schema), "updated_at": Now()}
            Pipeline.objects.update_or_create(name=pipeline.name, defaults=columns)
        Pipeline.objects.exclude(name__in=[pipeline.name for pipeline in offered]).delete()


def _with_order(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` with the author's order of parameters in `x-order`, because Postgres does not keep the order of object
    keys.
    """
    root = schema.get("$defs", {}).get(str(schema.get("$ref")).rpartition("/")[2], schema)
    return {**schema, "x-order": list(root.get("properties", {}))}
