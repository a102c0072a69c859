"""Coalescing: a source whose batches are small is polled again before its rows are sent.

Every batch has a fixed cost in each subtask that it passes, so thousands of small batches a second slow a job down
several times. The source is polled again only while it has rows at hand: rows never wait for rows that are still to
come (unlike Flink's buffer timeout), so an unhurried source costs no latency. Batches that take long are not coalesced
either (`PollPolicy.coalesces`): a barrier would wait behind more rows. No row is kept between two steps of the subtask.
Barriers, watermarks and the end of input therefore follow all polled rows.
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
