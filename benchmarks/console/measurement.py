"""The figures of an address and of the open tabs, with their limits."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

MAX_QUERIES: Final = 12
MAX_PAGE_BYTES: Final = 30 * 1024  #: compressed
GOAL_MS: Final = 100.0  #: of an address, at the 95th percentile
TARGET_MS: Final = 300.0  #: of the polls of tabs, at the 95th percentile


@dataclass(frozen=True, slots=True)
class Measurement:
    """`cpu_ms`: mean processor time of a request, in this process and in Postgres (`sql_cpu_ms`)."""

    name: str
    status: int
    queries: int
    p50_ms: float
    p95_ms: float
    cpu_ms: float
    sql_cpu_ms: float
    compressed_bytes: int
    is_page: bool

    @property
    def faults(self) -> list[str]:
        """The limits that the answer does not keep. Times are not among them: they depend on the machine."""
        texts = []
        if self.status not in (HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            texts.append(f"status {self.status}")
        if self.queries > MAX_QUERIES:
            texts.append(f"more than {MAX_QUERIES} queries")
        if self.is_page and self.compressed_bytes > MAX_PAGE_BYTES:
            texts.append(f"more than {MAX_PAGE_BYTES // 1024} KB")
        return texts


@dataclass(frozen=True, slots=True)
class TabTimes:
    """Times of the answers to all tabs. `pause_s`: between two polls of a tab."""

    tabs: int
    p50_ms: float
    p95_ms: float
    pause_s: float
    statuses: dict[int, int]

    @property
    def has_errors(self) -> bool:
        return any(status >= 400 for status in self.statuses)
