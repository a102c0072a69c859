"""Coalescing: a source whose batches are small is polled again before its rows are sent.

Every batch has a fixed cost in each subtask that it passes (measured in decision 0009). The source is polled again only
while it has rows at hand: a poll that returns far fewer rows than the first one shows that it has none left. Slow
batches are not coalesced, since a barrier would wait behind them (`PollPolicy.coalesces`). No row is kept between two
steps of the subtask. Barriers, watermarks and the end of input therefore follow all polled rows.
"""

from typing import Final

MIN_SHARE: Final = 0.5  #: of the rows of the first poll; a smaller batch shows that few rows are left at hand
MAX_COALESCED_ROWS: Final = 8_192
MAX_COALESCED_BYTES: Final = 1 << 20
MAX_COALESCING_MS: Final = 5.0


def is_more_wanted(first_rows: int, last_rows: int, rows: int, nbytes: int, took_ms: float) -> bool:
    """Whether to poll again.

    Args:
        first_rows, last_rows: of the first and the last poll of the step.
        rows, nbytes, took_ms: of all its polls.
    """
    return (
        last_rows >= MIN_SHARE * first_rows
        and rows < MAX_COALESCED_ROWS
        and nbytes < MAX_COALESCED_BYTES
        and took_ms < MAX_COALESCING_MS
    )
