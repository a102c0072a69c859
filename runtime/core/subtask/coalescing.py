"""Coalescing: a source whose batches are small is polled again before its rows are sent.

Every batch has a fixed cost in each subtask that it passes (measured in decision 0037). The source is polled again only
while it has rows at hand; one that has run out rests until more rows are due (`PollPolicy.rests`). Slow batches are not
coalesced, since a barrier would wait behind them (`PollPolicy.coalesces`). No row is kept between two steps of the
subtask. Barriers, watermarks and the end of input therefore follow all polled rows.
"""

from typing import Final

MIN_LAST_ROWS: Final = 64  #: a smaller batch shows that few rows are at hand: they are sent at once
MAX_COALESCED_ROWS: Final = 8_192
MAX_COALESCED_BYTES: Final = 1 << 20
MAX_COALESCING_MS: Final = 5.0


def is_more_wanted(last_rows: int, rows: int, nbytes: int, took_ms: float) -> bool:
    """Whether to poll again, if the last poll returned `last_rows` of the `rows` and `nbytes` of all polls."""
    return (
        last_rows >= MIN_LAST_ROWS
        and rows < MAX_COALESCED_ROWS
        and nbytes < MAX_COALESCED_BYTES
        and took_ms < MAX_COALESCING_MS
    )
