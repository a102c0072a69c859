"""Rows as JSON: snake_case, UTC, durations in `_ms`, sizes in `_bytes`. Requests with unknown members are refused."""
