"""Check that the host of a slot has the master's folders, by the markers of `master.shared_folders`."""

import errno
import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io.control.messages import Marker

MARKER_TIMEOUT_S: Final = 3.0  #: for a shared file system to show a new file on other hosts


def check_folders(markers: Sequence[Marker], slot: int, *, is_first_start: bool) -> None:
    """Compares this host's folders with the master's.

    Raises:
        JobRejected: a folder differs, at the first start of the run.
        EnvironmentFailure: a folder differs at a later start; the mount may come back.
    """
    folder = find_unshared_folder(markers)
    if folder is None:
        return
    detail = (
        f"host {socket.gethostname()!r} (slot {slot}) has another folder there than the job master: "
        "is a mount missing on this host?"
    )
    if is_first_start:
        raise JobRejected("folder-not-shared", folder, detail)
    raise EnvironmentFailure(f"{folder}: {detail}") from OSError(errno.ENODEV, "not mounted")  # an outage


def find_unshared_folder(markers: Sequence[Marker], timeout_s: float = MARKER_TIMEOUT_S) -> str | None:
    """The first folder that differs from the master's on this host, or None. Blocks at most `timeout_s` per folder."""
    for marker in markers:
        waited_s, pause_s = 0.0, 0.05
        while not all(os.path.lexists(Path(marker.folder) / file) for file in marker.files):
            if waited_s >= timeout_s:
                return marker.folder
            threading.Event().wait(pause_s)
            waited_s, pause_s = waited_s + pause_s, pause_s * 2
    return None
