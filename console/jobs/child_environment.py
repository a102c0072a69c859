"""The environment of processes that run code of job authors, without the secrets of the console.

A job master needs the database URL, the manifest key and the Spark Connect server of its slots, whose URL may have a
token. It removes these from its own environment before it runs code of an author. A PySpark stage needs none of them.
"""

import os
import re
from pathlib import Path
from typing import Final

import msgspec
from django.conf import settings

from console.jobs.connections import connections_of
from runtime.access.data_hosts import CONNECTIONS_VARIABLE, HOSTS_VARIABLE
from runtime.access.job_package import PACKAGE_VARIABLE
from runtime.access.spark_settings import REMOTE_VARIABLE, TOKEN_VARIABLE

#: Variables of the console. `PG…` are defaults of libpq, which it would send to any host that a job names.
_CONSOLE_VARIABLE: Final = re.compile(
    r"(?:CELERY_|DATABASE_URL|DJANGO_|PG|POSTGRES_|REDIS|SPARK_CONNECT_AUTHENTICATE_TOKEN|SPARK_REMOTE|WEIR_ADMIN_"
    r"|WEIR_DB_|WEIR_MANIFEST_KEY|WEIR_OIDC_)"
)
_NAMES_OF_MASTERS: Final = ("DATABASE_URL", REMOTE_VARIABLE, TOKEN_VARIABLE, "WEIR_MANIFEST_KEY")
_FOLDERS: Final = ("WEIR_VAR", "WEIR_STORAGE", "WEIR_INPUTS", "WEIR_LOGS")


def master_environment(beat_file: Path, pipeline: str, package: str | None = None) -> dict[str, str]:
    """The environment of a job master of `pipeline`, whose main loop touches `beat_file`. `package`: its digest."""
    variables = {name: os.environ[name] for name in _NAMES_OF_MASTERS if name in os.environ}
    return stage_environment(pipeline, package) | variables | {"WEIR_BEAT_FILE": str(beat_file)}


def stage_environment(pipeline: str = "", package: str | None = None) -> dict[str, str]:
    """The environment of a PySpark stage of `pipeline`, with its named connections.

    `package`: digest of the package with the job's code; None: the code is installed beside Weir.
    """
    passed = {name: value for name, value in os.environ.items() if not _CONSOLE_VARIABLE.match(name)}
    folders = {name: str(getattr(settings, name)) for name in _FOLDERS}
    connections = connections_of(pipeline) if pipeline else {}
    limits = {
        "WEIR_DATA_ROOTS": os.pathsep.join(map(str, settings.WEIR_DATA_ROOTS)),
        HOSTS_VARIABLE: " ".join(settings.WEIR_DATA_HOSTS),
        PACKAGE_VARIABLE: package or "",
        CONNECTIONS_VARIABLE: msgspec.json.encode(connections).decode(),
    }
    return passed | folders | limits
