"""The environment of processes that run code of job authors, without the secrets of the console.

A job master needs the database URL and the manifest key; it removes them from its own environment before it starts
Spark. A PySpark stage needs none of the console's services.
"""

import os
from pathlib import Path
from typing import Final

from django.conf import settings

_SECRETS: Final = frozenset(
    {
        "CELERY_BROKER_URL", "DJANGO_SECRET_KEY", "POSTGRES_PASSWORD", "REDISCLI_AUTH", "REDIS_PASSWORD",
        "WEIR_ADMIN_PASSWORD",
    }
)  # fmt: skip
_SECRETS_OF_MASTERS: Final = frozenset({"DATABASE_URL", "WEIR_MANIFEST_KEY"})
_FOLDERS: Final = ("WEIR_VAR", "WEIR_STORAGE", "WEIR_INPUTS", "WEIR_LOGS")


def master_environment(beat_file: Path) -> dict[str, str]:
    """The environment of a job master, whose main loop touches `beat_file`."""
    return _environment_without(_SECRETS) | {"WEIR_BEAT_FILE": str(beat_file)}


def stage_environment() -> dict[str, str]:
    """The environment of a PySpark stage."""
    return _environment_without(_SECRETS | _SECRETS_OF_MASTERS)


def _environment_without(secrets: frozenset[str]) -> dict[str, str]:
    passed = {name: value for name, value in os.environ.items() if name not in secrets}
    folders = {name: str(getattr(settings, name)) for name in _FOLDERS}
    return passed | folders | {"WEIR_DATA_ROOTS": os.pathsep.join(map(str, settings.WEIR_DATA_ROOTS))}
