"""Check that the host of a slot has the master's storage and folders, by the markers of `master.shared_folders`."""

import errno
import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from runtime.errors import CorruptState, EnvironmentFailure, JobRejected, is_outage
from runtime.io.control.messages import Marker
from runtime.io.store import open_store
from runtime.s3 import is_bucket

MARKER_TIMEOUT_S: Final = 3.0  #: for a shared file system to show a new file on other hosts


def check_folders(markers: Sequence[Marker], slot: int, *, is_first_start: bool) -> None:
    """Compares this host's folders with the master's.

    Raises:
        JobRejected: a folder differs or a bucket refuses this host, at the first start of the run.
        EnvironmentFailure: the same at a later start, since the mount may come back; or a bucket is away.
    """
    try:
        folder = find_unshared_folder(markers)
    except EnvironmentFailure as error:
        problem = f"host {socket.gethostname()!r} (slot {slot}): {error}"
        if is_first_start and not is_outage(error):
            raise JobRejected("storage-refused", "storage", problem) from error
        raise EnvironmentFailure(problem) from error
    if folder is None:
        return
    if is_bucket(folder):
        problem = "does not see the object that the job master wrote: does AWS_ENDPOINT_URL name the same server?"
    else:
        problem = "has another folder there than the job master: is a mount missing on this host?"
    detail = f"host {socket.gethostname()!r} (slot {slot}) {problem}"
    if is_first_start:
        raise JobRejected("folder-not-shared", folder, detail)
    raise EnvironmentFailure(f"{folder}: {detail}") from OSError(errno.ENODEV, "not mounted")  # an outage


def find_unshared_folder(markers: Sequence[Marker], timeout_s: float = MARKER_TIMEOUT_S) -> str | None:
    """The first folder that differs from the master's on this host, or None. Blocks at most `timeout_s` per folder.

    Raises:
        EnvironmentFailure: a bucket cannot be read, for example because this host has no credentials for it.
    """
    for marker in markers:
        waited_s, pause_s = 0.0, 0.05
        while not _has_files(marker):
            if waited_s >= timeout_s:
                return marker.folder
            threading.Event().wait(pause_s)
            waited_s, pause_s = waited_s + pause_s, pause_s * 2
    return None


def _has_files(marker: Marker) -> bool:
    if not is_bucket(marker.folder):
        return all(os.path.lexists(Path(marker.folder) / file) for file in marker.files)
    store = open_store(marker.folder)
    try:
        return all(not store.get(file) for file in marker.files)  # markers are empty
    except CorruptState:
        return False
