"""The environment of processes that run code of job authors, without the secrets of the console.

A job master needs the database URL and the manifest key; it removes them from its own environment before it starts
Spark. A PySpark stage needs none of the console's services.
"""

import os
import re
from pathlib import Path
from typing import Final

from django.conf import settings

#: Variables of the console. `PG…` are defaults of libpq, which it would send to any host that a job names.
_CONSOLE_VARIABLE: Final = re.compile(
    r"(?:CELERY_|DATABASE_URL|DJANGO_|PG|POSTGRES_|REDIS|WEIR_ADMIN_|WEIR_DB_|WEIR_MANIFEST_KEY)"
)
_NAMES_OF_MASTERS: Final = ("DATABASE_URL", "WEIR_MANIFEST_KEY")
_FOLDERS: Final = ("WEIR_VAR", "WEIR_STORAGE", "WEIR_INPUTS", "WEIR_LOGS")


def master_environment(beat_file: Path) -> dict[str, str]:
    """The environment of a job master, whose main loop touches `beat_file`."""
    needed = {name: os.environ[name] for name in _NAMES_OF_MASTERS if name in os.environ}
    return stage_environment() | needed | {"WEIR_BEAT_FILE": str(beat_file)}


def stage_environment() -> dict[str, str]:
    """The environment of a PySpark stage."""
    passed = {name: value for name, value in os.environ.items() if not _CONSOLE_VARIABLE.match(name)}
    folders = {name: str(getattr(settings, name)) for name in _FOLDERS}
    return passed | folders | {"WEIR_DATA_ROOTS": os.pathsep.join(map(str, settings.WEIR_DATA_ROOTS))}
