"""The Celery workers that answer, with their queues and places, and whether a new run would wait for one.

Workers answer by broadcast, which takes the whole timeout. A thread asks them, so no request waits for it.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from console.celery import app

TIMEOUT_S: Final = 1.0  #: of each of the three questions
_MAX_AGE: Final = timedelta(seconds=5)
_CURRENT: Final = timedelta(seconds=30)  #: an older answer says nothing about places


@dataclass(frozen=True, slots=True)
class Worker:
    """A Celery worker. Each of its `places` executes a task at a time."""

    name: str
    queues: tuple[str, ...]
    places: int
    busy: int

    @property
    def free(self) -> int:
        return max(0, self.places - self.busy)


@dataclass(frozen=True, slots=True)
class Answer:
    """The workers that answered at a time. `error`: why none could be asked."""

    at: datetime
    workers: tuple[Worker, ...] = ()
    error: str = ""

    @property
    def queues(self) -> tuple[tuple[str, int, int], ...]:
        """(queue, places, free places). A worker of several queues counts in each."""
        names = sorted({name for worker in self.workers for name in worker.queues})
        by_queue = {name: [worker for worker in self.workers if name in worker.queues] for name in names}
        return tuple(
            (name, sum(w.places for w in by_queue[name]), sum(w.free for w in by_queue[name])) for name in names
        )

    @property
    def run_places(self) -> tuple[int, int]:
        """The places for runs, and those in which no task is executed."""
        return next(((places, free) for queue, places, free in self.queues if queue == "runs"), (0, 0))


class WorkerCensus:
    """Keeps the last answer of the workers. A reader of an old answer starts the next question."""

    def __init__(self, ask: Callable[[], tuple[Worker, ...]]) -> None:
        self._ask = ask
        self._asking = threading.Lock()
        self._answer: Answer | None = None

    def last(self) -> Answer | None:
        """The last answer, at once; None if the workers have not answered for `_CURRENT`."""
        answer, now = self._answer, datetime.now(UTC)
        if answer is not None and now - answer.at > _CURRENT:
            answer = None
        is_old = answer is None or now - answer.at > _MAX_AGE
        if is_old and self._asking.acquire(blocking=False):
            threading.Thread(target=self._refresh, name="worker-census", daemon=True).start()
        return answer

    def _refresh(self) -> None:
        try:
            workers = self._ask()
            self._answer = Answer(datetime.now(UTC), workers)
        except Exception as unreachable:  # noqa: BLE001 - thread boundary: brokers raise errors of many libraries
            error = f"The broker does not answer: {type(unreachable).__name__}."
            self._answer = Answer(datetime.now(UTC), error=error)
        finally:
            self._asking.release()


def ask_workers() -> tuple[Worker, ...]:
    inspect = app.control.inspect(timeout=TIMEOUT_S)
    queues: Mapping[str, Any] = inspect.active_queues() or {}
    stats: Mapping[str, Any] = inspect.stats() or {}
    active: Mapping[str, Any] = inspect.active() or {}
    return tuple(
        Worker(
            name=name,
            queues=tuple(sorted(queue["name"] for queue in queues[name] or ())),
            places=int(stats.get(name, {}).get("pool", {}).get("max-concurrency") or 0),
            busy=len(active.get(name) or ()),
        )
        for name in sorted(queues)
    )


CENSUS: Final = WorkerCensus(ask_workers)


def wait_of_new_run() -> str:
    """Why a run that is requested now would wait for a worker, as a sentence; "" if it would not, or if unknown."""
    answer = CENSUS.last()
    if answer is None or answer.error:
        return ""
    places, free = answer.run_places
    if not places:
        return "No worker for runs answers: the new run waits until one does."
    return "" if free else f"All places for runs ({places}) are in use: the new run waits until another run ends."
