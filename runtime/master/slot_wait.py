"""Wait for slots before an attempt: a shortage is a state of the run, not a failure.

The job master polls the launcher several times a second. A lasting shortage becomes the state `waiting` and a live
report. It ends with new slots, by a user's cancel, or at the timeout in the settings. A step of the launch that lasts
is in the live report too. The wait starts no process and reads no clock of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from runtime.core.attempt.result import AttemptFailed, LauncherBroken
from runtime.core.job.lifecycle import RunEvent
from runtime.master.launcher import Launcher, SlotPhase, SlotStatus
from runtime.ports import Clock

MIN_POLL_S: Final = 0.005  #: between the first two polls, then doubled: threads are ready within 10 ms
MAX_POLL_S: Final = 0.05  #: longest pause between polls before a shortage is reported
Report = Callable[[RunEvent | None, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortageReports:
    """When a shortage of slots is reported, and a step of the launch."""

    grace_ms: int = 3_000  #: a shorter shortage is not reported: executors may be starting
    interval_ms: int = 1_000  #: between reports, and before the first report of a step
    poll_s: float = 0.5  #: between polls of a reported shortage


class SlotWait:
    """Wait of a single attempt, owned by the master's thread. Call `poll` until it returns a result or `is_over`.

    Args:
        report: records a change of the run's state and the live report.
        patience_ms: how long slots may be missing; None: no limit.
        start_ms: how long the processes of the slots may take from the start of their tasks.
        reports: when a shortage or a step of the launch is reported.
    """

    def __init__(
        self,
        launcher: Launcher,
        clock: Clock,
        report: Report,
        patience_ms: int | None,
        start_ms: int,
        reports: ShortageReports,
    ) -> None:
        self._launcher, self._clock, self._report = launcher, clock, report
        self._timeout_ms, self._start_ms, self._reports = patience_ms, start_ms, reports
        self._shortage_since: float | None = None
        self._starting_since: float | None = None
        self._reported_at: float | None = None
        self._pause_s = MIN_POLL_S / 2
        self.is_over = False
        self.began_at = self.opened_at = clock.monotonic_ms()  #: begin, and the end of the connection to the cluster
        self._step_reported_at = self.began_at

    @property
    def is_reported(self) -> bool:
        """Whether the run is in the state `waiting`."""
        return self._reported_at is not None

    def next_pause_s(self) -> float:
        """Seconds to sleep before the next `poll`."""
        self._pause_s = min(2 * self._pause_s, MAX_POLL_S)
        return self._reports.poll_s if self.is_reported else self._pause_s

    def poll(self) -> AttemptFailed | LauncherBroken | None:
        """Polls the launcher. Returns the result if the wait failed, else None."""
        if loss := self._launcher.loss:
            return LauncherBroken(loss)
        status, now = self._launcher.status(), self._clock.monotonic_ms()
        match status.phase:
            case SlotPhase.READY:
                self._report_available()
                self.is_over = True
                return None
            case SlotPhase.STARTING:
                result = self._on_starting(status, now)
                self._report_step("slots", status, now)
                return result
            case SlotPhase.WAITING:
                result = self._on_shortage(status, now)
                self._report_step("slots", status, now)
                return result
            case SlotPhase.OPENING:
                self.opened_at = now
                self._report_step("spark", status, now)
                return None

    def _report_step(self, step: str, status: SlotStatus, now: float) -> None:
        """`step`: "spark" until the cluster answers, then "slots". A reported shortage has a report of its own."""
        if self.is_reported or now - self._step_reported_at < self._reports.interval_ms:
            return
        self._step_reported_at = now
        self._report(None, {"launch": {"step": step, "wanted": status.wanted, "there": status.connected}})

    def _on_starting(self, status: SlotStatus, now: float) -> AttemptFailed | None:
        self._shortage_since = None
        self._report_available()
        if self._starting_since is None:
            self._starting_since = now
        if now - self._starting_since <= self._start_ms:
            return None
        slots = f"{status.wanted - status.connected} of {status.wanted} slots"
        return AttemptFailed(f"{slots} did not connect within {self._start_ms} ms of their start")

    def _on_shortage(self, status: SlotStatus, now: float) -> AttemptFailed | None:
        self._starting_since = None
        if self._shortage_since is None:
            self._shortage_since = now
        waited_ms = now - self._shortage_since
        if self._timeout_ms is not None and waited_ms > self._timeout_ms:
            text = f"no slots within {self._timeout_ms} ms: {status}"
            return AttemptFailed(text, is_final=True, code="no-slots")
        if waited_ms >= self._reports.grace_ms and (
            self._reported_at is None or now - self._reported_at >= self._reports.interval_ms
        ):
            event = None if self.is_reported else RunEvent.SLOTS_MISSING
            self._reported_at = now
            numbers = {"wanted": status.wanted, "there": status.available, "held_by": status.shortage_cause}
            self._report(event, {"waiting": numbers})
        return None

    def _report_available(self) -> None:
        if self.is_reported:
            self._reported_at = None
            self._report(RunEvent.SLOTS_AVAILABLE, {})
