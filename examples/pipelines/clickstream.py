"""Example: sessions of visitors and views of pages per minute, from clicks out of order. Late clicks are kept.

clicks (folder of JSON lines) ─┬ by visitor ─ sessions ───────┬ sessions
                               │                              └ late clicks
                               └ by page ─ views per minute ──┬ views
                                                              └ late views
"""

from datetime import timedelta
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import Meta

import weir
from examples.samples.folders import Bounded, Folder, sample_folder

CLICKS = pa.schema([("clicked_at", pa.timestamp("ms")), ("visitor", pa.string()), ("page", pa.string())])
SESSIONS = pa.schema(
    [("visitor", pa.string()), ("first", pa.timestamp("ms")), ("last", pa.timestamp("ms")), ("clicks", pa.int64())]
)
LATE_CLICKS = weir.OutputTag("late_clicks", CLICKS)
LATE_VIEWS = weir.OutputTag("late_views", CLICKS)


class ClickstreamParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    clicks_dir: Annotated[
        Folder,
        Meta(
            title="Folder of clicks", description="JSON lines with clicked_at, visitor and page; read as files appear."
        ),
    ] = sample_folder("clickstream/clicks")
    output_dir: Annotated[
        Folder, Meta(title="Output folder", description="Gets the folders sessions, late_clicks, views and late_views.")
    ] = sample_folder("clickstream")
    pause_minutes: Annotated[
        int, Meta(ge=1, title="Pause (minutes)", description="A longer pause of a visitor ends the session.")
    ] = 5
    max_disorder_s: Annotated[
        int,
        Meta(ge=0, title="Largest disorder (s)", description="Windows and sessions wait for clicks this far behind."),
    ] = 60
    bounded: Bounded = False


class Sessions(weir.KeyedProcessFunction):
    """Joins the clicks of a visitor to sessions; each session is emitted once, when event time has passed its pause.

    A click that belongs into or before an emitted session is late.
    """

    def __init__(self, pause_ms: int) -> None:
        self.pause_ms = pause_ms

    def open(self, context: weir.ProcessContext) -> None:
        self.sessions = context.value_state("sessions")  # open sessions of the visitor, each [first, last, clicks]
        self.closed = context.value_state("closed")  # end of the pause after the last emitted session

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        at = context.timestamp
        assert at is not None, "the step names its time column"
        if at <= (self.closed.get() or 0):
            out.emit_to(LATE_CLICKS, row)
            return
        first, last, clicks, apart = at, at, 1, []
        for session in self.sessions.get() or []:
            if session[0] - self.pause_ms <= at <= session[1] + self.pause_ms:
                first, last, clicks = min(first, session[0]), max(last, session[1]), clicks + session[2]
            else:
                apart.append(session)
        self.sessions.update([*apart, [first, last, clicks]])
        context.register_event_timer(last + self.pause_ms)

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        sessions = self.sessions.get()
        for first, last, clicks in sessions:
            if last + self.pause_ms == timestamp_ms:  # otherwise a click has extended the session since
                out.emit({"visitor": context.current_key, "first": first, "last": last, "clicks": clicks})
                self.closed.update(timestamp_ms)
        self.sessions.update([session for session in sessions if session[1] + self.pause_ms > timestamp_ms])


def build(params: ClickstreamParams, context: weir.PipelineContext) -> weir.Dataflow:
    flow = weir.Dataflow("clickstream")
    source = weir.DirectorySource(
        params.clicks_dir,
        weir.JsonLinesFormat(CLICKS),
        event_time="clicked_at",
        max_disorder_ms=params.max_disorder_s * 1000,
        bounded=params.bounded,
    )
    clicks = flow.source("clicks", source)

    pause_ms = params.pause_minutes * 60_000
    sessions = clicks.key_by("visitor").process(
        "sessions", lambda: Sessions(pause_ms), SESSIONS, time="clicked_at", side_outputs=[LATE_CLICKS]
    )
    sessions.sink("session_files", weir.ParquetSink(f"{params.output_dir}/sessions"))
    sessions.side_output(LATE_CLICKS).sink("late_click_files", weir.ParquetSink(f"{params.output_dir}/late_clicks"))

    views = clicks.key_by("page").window(
        "views", timedelta(minutes=1), "clicked_at", {"views": weir.Count()}, late_to=LATE_VIEWS
    )
    views.sink("view_files", weir.ParquetSink(f"{params.output_dir}/views"))
    views.side_output(LATE_VIEWS).sink("late_view_files", weir.ParquetSink(f"{params.output_dir}/late_views"))
    return flow


PIPELINE = weir.Pipeline(
    name="clickstream",
    description="Example: sessions and views per minute from clicks out of order. See docs/examples/clickstream.md.",
    params=ClickstreamParams,
    build=build,
)
