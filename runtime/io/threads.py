"""The start of a thread, which fails at a limit of the user, the container or memory."""

import threading

from runtime.errors import EnvironmentFailure


def start_thread(thread: threading.Thread) -> None:
    """Starts `thread`. Raises EnvironmentFailure: no thread is free."""
    try:
        thread.start()
    except RuntimeError as error:
        raise EnvironmentFailure(f"no thread is free for {thread.name}: {error}") from error
