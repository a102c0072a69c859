"""File work of operations: the clones of restore drills, and the deletion of files, also of unfinished clones.

Deleting or copying a large folder takes minutes, and storage may hang. A worker of the queue `stages` therefore does
it, outside any transaction, a pass at a time. The passes of the queue `housekeeping` touch no such files, so runs are
watched meanwhile. If the worker dies, Postgres releases its lock, and the next pass repeats the work.
"""

from typing import Final

import structlog

from console.advisory_lock import try_lock
from console.checkpoints.storage import mark_storage
from console.operations import clones, discard, drill_starts, drills, scheduled_operations
from console.operations.passes import FILE_WORK_LOCK

_WORK: Final = (
    mark_storage,  # before deletions, which need the marker
    drill_starts.start_drills,
    scheduled_operations.discard_surplus,
    discard.delete_discarded_files,
    drills.delete_clones,
    clones.delete_unfinished_clones,
)

log = structlog.get_logger(__name__)


def run_file_work() -> bool:
    """A pass over all operations that wait for file work. False: another pass is under way.

    An unexpected error of one kind of work stops no other.
    """
    with try_lock(FILE_WORK_LOCK) as is_free:
        for work in _WORK if is_free else ():
            try:
                work()
            except Exception:
                log.exception("file work failed", work=work.__name__)
    return is_free
