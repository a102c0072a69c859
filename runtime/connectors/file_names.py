"""Names of the files that sinks write. They identify the writer, so no attempt touches files of another attempt.

    .weir-<owner>-<k>.inprogress                     the k-th file that its writer began
    .weir-<owner>-<k>.pending                        closed and durable
    .weir-<owner>-<k>.copying                        a copy from another folder in progress
    part-<owner>-<checkpoint>-<n>.parquet            committed
    .committed-<owner>-<n>                           commit mark: files 1 to n are committed or pending

The owner is `<job>-<token>-<uid>-<subtask>`. A file that stays hidden over several checkpoints may be finished before a
file that was begun earlier. Its visible name then has both numbers, `…-<n>~<k>.jsonl`: the n-th finished file, begun as
the k-th. A file that merges the files k to l is `…-<n>~<k>~<l>.parquet`.
"""

import re
from typing import Final

from runtime.connectors.names import NAME_PATTERN
from runtime.connectors.partitions import FOLDER_PATTERN

_OWNER: Final = rf"(?P<job>{NAME_PATTERN})-(?P<token>\d+)-(?P<uid>{NAME_PATTERN})-\d+"
_BEGUN: Final = r"(?P<begun>\d+(?:~\d+)?)"  #: k, or k~l
_SUFFIX: Final = r"\.(?:parquet|jsonl|csv|avro)"
HIDDEN_NAME: Final = re.compile(rf"\.weir-(?P<owner>{_OWNER})-{_BEGUN}\.(?P<state>inprogress|pending|copying)")
FINAL_NAME: Final = re.compile(rf"{FOLDER_PATTERN}part-(?P<owner>{_OWNER})-\d+-(?P<number>\d+)(?:~{_BEGUN})?{_SUFFIX}")
MARK_NAME: Final = re.compile(rf"\.committed-(?P<owner>{_OWNER})-(?P<number>\d+)")


def covers(final: re.Match[str], owner: str, begun: int) -> bool:
    """Whether the visible file `final` holds the rows of the file that `owner` began as number `begun`."""
    if final["owner"] != owner or final["begun"] is None:
        return False
    first, _, last = final["begun"].partition("~")
    return int(first) <= begun <= int(last or first)
