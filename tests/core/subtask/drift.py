"""A window of which a test says what it has heard."""

from dataclasses import dataclass, field

from runtime.core.job.ids import ChannelId
from runtime.core.subtask.watermark_valve import WatermarkValve


@dataclass
class WindowStub:
    watermarks: WatermarkValve
    blocked_channels: set[ChannelId] = field(default_factory=set)
