"""Ends of a process at a phase that the test chooses: SIGKILL of a slot on Spark, a failed attempt on threads."""

import os
import signal
import threading

from runtime.errors import WeirError
from tests.shared import Shared


class Deaths(Shared):
    """The phases at which a process of the job is to end, in this order. Each is a step of a sink: "first: prepare"."""

    def __init__(self, *phases: str) -> None:
        self.waiting = list(phases)
        self.home = os.getpid()
        self._lock = threading.Lock()

    def add(self, phase: str) -> None:
        with self._lock:
            self.waiting.append(phase)

    def is_due(self, phase: str) -> bool:
        with self._lock:
            if self.waiting[:1] != [phase]:
                return False
            del self.waiting[0]
            return True


class Mortal:
    """Ends its process by SIGKILL if that is a slot of its own; fails the attempt in the process of the test.

    The error is no EnvironmentFailure: such a commit would be repeated within the attempt.
    """

    def __init__(self, deaths: Deaths, sink: str) -> None:
        self._deaths, self._sink = deaths, sink

    def at(self, step: str) -> None:
        if self._deaths.is_due(f"{self._sink}: {step}"):
            if os.getpid() != self._deaths.home:
                os.kill(os.getpid(), signal.SIGKILL)
            raise WeirError(f"the process ends at {self._sink}: {step}")
