"""Clicks of the example `clickstream`: visits, slightly out of order, some clicks far too late.

A step has ten minutes of clicks in four files. Every hundredth click is a straggler: it comes three steps later, long
after its session and its minute have closed. All other rows lag at most `DISORDER_MS` behind.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa

from examples.samples.check import committed_table, json_table
from runtime.durable import write_file

STEPS: Final = 12
DISORDER_MS: Final = 60_000
_TIME: Final = pa.timestamp("ms")
_CLICKS: Final = pa.schema([("clicked_at", _TIME), ("visitor", pa.string()), ("page", pa.string())])
_OUTPUTS: Final = {
    "sessions": pa.schema([("visitor", pa.string()), ("first", _TIME), ("last", _TIME), ("clicks", pa.int64())]),
    "late_clicks": _CLICKS,
    "views": pa.schema([("page", pa.string()), ("window_start", _TIME), ("window_end", _TIME), ("views", pa.int64())]),
    "late_views": _CLICKS,
}
_STEP_MS: Final = 600_000
_BEGIN: Final = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
_FILES: Final = 4
_VISITORS: Final = 300
_PAGES: Final = ("home", "search", "item", "basket", "payment", "help")
_DELAY_STEPS: Final = 3


def prepare(folder: Path, database: str) -> None:
    """Creates the folder of the input."""
    (folder / "clicks").mkdir(parents=True, exist_ok=True)


def write_step(folder: Path, database: str, step: int) -> None:
    """Writes the files of a step. A repetition writes the same bytes."""
    clicks = [click for click in _clicks(step) if not click["straggler"]]
    clicks += [click for click in _clicks(step - _DELAY_STEPS) if click["straggler"]]
    clicks.sort(key=lambda click: click["sent"])
    for file in range(_FILES):
        share = clicks[file * len(clicks) // _FILES : (file + 1) * len(clicks) // _FILES]
        write_file(folder / "clicks" / f"clicks-{step:03}-{file}.json", "".join(map(_line, share)).encode())


def _line(click: dict[str, Any]) -> str:
    at = _BEGIN + timedelta(milliseconds=click["at"])
    text = at.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return json.dumps({"clicked_at": text, "visitor": click["visitor"], "page": click["page"]}) + "\n"


def _clicks(step: int) -> list[dict[str, Any]]:
    """The clicks that happen in a step; `at` and `sent` are milliseconds since the beginning."""
    if step < 0:
        return []
    random = Random(step)  # noqa: S311 - sample data
    clicks = []
    for number in random.sample(range(_VISITORS), _VISITORS // 4):
        at = step * _STEP_MS + random.randrange(_STEP_MS // 2)
        for _ in range(random.randrange(1, 8)):
            clicks.append((at, f"visitor-{number:03}", random.choice(_PAGES)))
            at += random.randrange(1_000, 45_000)
    last = (step + 1) * _STEP_MS - 1
    return [
        {
            "at": min(at, last),
            "visitor": visitor,
            "page": page,
            "sent": at + random.randrange(DISORDER_MS),
            "straggler": random.random() < 0.01,
        }
        for at, visitor, page in clicks
    ]


def tables(folder: Path, database: str) -> dict[str, pa.Table]:
    """Input and output of the example, for `clickstream.sql`."""
    committed = {name: committed_table(folder / name, schema) for name, schema in _OUTPUTS.items()}
    return {"clicks": json_table(folder / "clicks", _CLICKS), **committed}
