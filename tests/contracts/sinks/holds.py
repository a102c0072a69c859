"""Points at which a test holds up a job in another process, by files in the folder of the job.

The points: `before-prepare`, with rows of a checkpoint in the writer, and `before-commit`, with the checkpoint recorded
and the commit of the job master to come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.waiting import until

_PAUSE_S: Final = 0.01


def wait_while_held(folder: Path, point: str) -> None:
    """Blocks a thread of the job while a test holds it up at this point."""
    request = folder / f"hold-{point}"
    while request.exists():
        (folder / f"held-{point}").touch()
        time.sleep(_PAUSE_S)


@contextmanager
def held(folder: Path, point: str, log: Callable[[], str] = str) -> Iterator[None]:
    """Within the block a thread of the job stands at the point. `log`: for the message of a failure."""
    request, arrived = folder / f"hold-{point}", folder / f"held-{point}"
    arrived.unlink(missing_ok=True)  # of a thread that went on a moment too late
    request.touch()
    try:
        until(arrived.exists, or_else=log)
        yield
    finally:
        request.unlink()
        arrived.unlink(missing_ok=True)
