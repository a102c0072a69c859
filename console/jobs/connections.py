"""Named connections of pipelines, as the processes of jobs get them and as logs are masked."""

import json
from collections.abc import Mapping
from typing import Any

from console.jobs.models import Connection
from runtime import data_hosts
from runtime.secrets import connection_names


def connections_of(pipeline: str) -> dict[str, data_hosts.Connection]:
    """The connections that the pipeline may use, by name. Values of secrets are not read."""
    rows = Connection.objects.all()
    return {row.name: _plain(row) for row in rows if {pipeline, "*"}.intersection(row.pipelines.split())}


def mentioned_connections(params: Mapping[str, Any]) -> list[data_hosts.Connection]:
    """The connections that the parameters of a version name."""
    names = connection_names(json.dumps(dict(params)))
    return [_plain(row) for row in Connection.objects.filter(name__in=names)] if names else []


def _plain(row: Connection) -> data_hosts.Connection:
    return data_hosts.Connection(row.address, row.options)
