"""Event time of the idle subtasks of a source: they follow its active subtasks.

Idle subtasks hold back no window, yet rows of an input in order are not late. (In Flink, rows of a subtask that resumes
later than its siblings may be late.)

1. Each subtask of a source reports its watermark, whether it is idle, and how often it has found new splits.
2. The master sends each idle subtask the smallest watermark of the active subtasks. If all are idle, it sends the
   largest watermark of all. A subtask that has ended counts as idle at its last watermark.
3. An idle subtask first looks for new splits, unless it has looked since the last discovery of any subtask. If it finds
   no split, it raises its watermark. Otherwise it reads the split, and its earlier watermark holds back the windows.

A subtask that awaits the live part of its source reports itself as idle, and follows, too (`source_parts`).

A split with earlier rows existed when its successors were discovered. The look begins after their discovery, so it sees
this split. A reported watermark therefore never passes a row that an idle subtask has yet to find.
"""

import math
from collections.abc import Iterable
from typing import Final, Protocol

from runtime.core.job.ids import OperatorId, SubtaskId
from runtime.core.job.messages import MAX_WATERMARK
from runtime.core.snapshot.control import FollowWatermark, SourceReport
from runtime.core.subtask.subtask import Subtask

MIN_REPORT_INTERVAL_MS: Final = 20.0  #: between reports; as many ms as the source has subtasks, if these are more


class LooksForSplits(Protocol):
    """The part of a `ports.SourceReader` that discovers splits."""

    @property
    def discoveries(self) -> int: ...
    @property
    def has_looked(self) -> bool: ...
    def look_for_splits(self) -> None: ...


class IdleSources:
    """The reports of the source subtasks of an attempt. Mutable, owned by the master."""

    def __init__(self) -> None:
        self._reports: dict[OperatorId, dict[int, SourceReport]] = {}
        self._sent: dict[SubtaskId, FollowWatermark] = {}

    def on_report(self, subtask: SubtaskId, report: SourceReport) -> Iterable[FollowWatermark]:
        """Stores a report. Returns the messages for idle subtasks of the source.

        A subtask without a report holds back event time itself, by the channels to its receivers.
        """
        reports = self._reports.setdefault(subtask.operator, {})
        reports[subtask.index] = report
        if not report.is_idle:
            self._sent.pop(subtask, None)
        active = [each.watermark for each in reports.values() if not each.is_idle]
        watermark = min(active) if active else max(each.watermark for each in reports.values())
        discoveries = sum(each.discoveries for each in reports.values())
        behind = [index for index, each in reports.items() if each.is_idle and each.watermark < watermark]
        messages = [FollowWatermark(SubtaskId(subtask.operator, index), watermark, discoveries) for index in behind]
        return [message for message in messages if self._send(message)]

    def _send(self, message: FollowWatermark) -> bool:
        """Whether the message is new. Stores it."""
        if self._sent.get(message.subtask) == message:
            return False
        self._sent[message.subtask] = message
        return True


class WatermarkFollower:
    """The part of a source subtask. Mutable, owned by its host.

    Args:
        reader: None if the restored checkpoint marks the subtask as finished.
        parallelism: that of the source.
    """

    def __init__(self, machine: Subtask, reader: LooksForSplits | None, parallelism: int) -> None:
        self._machine, self._reader = machine, reader
        self._has_siblings = parallelism > 1
        self._interval_ms = max(MIN_REPORT_INTERVAL_MS, parallelism)
        self._last_report: SourceReport | None = None
        self._reported_at = -math.inf
        self._watermark = machine.watermark  #: without the maximum watermark at the end
        self._message: FollowWatermark | None = None
        self._looked_for = 0  #: discoveries before the last look

    def on_attempt(self) -> None:
        """The subtask continues in another attempt: its siblings count their discoveries anew."""
        self._last_report, self._message, self._looked_for = None, None, 0

    def on_message(self, message: FollowWatermark) -> None:
        """The master sent a message: it becomes due after a look for new splits."""
        assert self._reader is not None, "a finished subtask sends no report"
        self._message = message
        if message.discoveries > self._looked_for:
            self._looked_for = message.discoveries
            self._reader.look_for_splits()

    def on_rows(self) -> None:
        """The subtask has rows again: an earlier message no longer applies."""
        self._message = None

    def take_due(self) -> FollowWatermark | None:
        """Takes the message that an idle subtask is to follow now. Call after a poll without rows."""
        if self._message is None or self._reader is None or not self._reader.has_looked:
            return None
        message, self._message = self._message, None
        return message

    def report_due(self, now: float) -> SourceReport | None:
        """The report to send at `now` (monotonic ms); None if nothing has changed, or the last report is too recent."""
        if not self._has_siblings or self._reader is None:
            return None
        machine, last = self._machine, self._last_report
        if machine.watermark < MAX_WATERMARK:
            self._watermark = machine.watermark
        is_idle = machine.is_idle or machine.is_logic_done or machine.awaits_live
        report = SourceReport(self._watermark, is_idle, self._reader.discoveries)
        is_recent = now - self._reported_at < self._interval_ms
        if report == last or (last is not None and is_recent and report.is_idle == last.is_idle):
            return None
        self._last_report, self._reported_at = report, now
        return report
