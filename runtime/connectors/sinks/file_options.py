"""Options that the sinks of files share."""

from collections.abc import Mapping, Sequence

from runtime.connectors.bucket import check_place
from runtime.connectors.partitions import check_partition_columns
from runtime.errors import JobRejected


def check_file_options(
    path: str, partition_by: Sequence[str], sizes: Mapping[str, int | None], intervals: Mapping[str, int | None]
) -> None:
    """Raises JobRejected, naming the option, if one is invalid. Sizes in bytes, intervals in ms, None: no limit."""
    if not path:
        raise JobRejected("bad-path", "path", "must name the output folder")
    check_place("path", path)
    check_partition_columns(partition_by)
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise JobRejected("bad-size", name, "must be at least 1 byte")
    for name, interval in intervals.items():
        if interval is not None and interval < 1:
            raise JobRejected("bad-interval", name, "must be at least 1 ms")
