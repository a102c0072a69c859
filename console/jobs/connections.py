"""Named connections of pipelines, as the processes of jobs get them and as logs are masked."""

from console.jobs.models import Connection
from runtime.access import data_hosts


def connections_of(pipeline: str) -> dict[str, data_hosts.Connection]:
    """The connections that the pipeline may use, by name. Values of secrets are not read."""
    rows = [row for row in Connection.objects.all() if {pipeline, "*"}.intersection(row.pipelines.split())]
    return {row.name: data_hosts.Connection(row.address, row.options) for row in rows}
