"""The command `celery` under a clock that a file moves: its first argument names the file, with an offset in seconds.

The other arguments are those of `celery`.
"""

import sys
from datetime import datetime, timedelta
from pathlib import Path

from celery.__main__ import main

from console.celery import app

OFFSET = Path(sys.argv.pop(1))
read_clock = app.now


def moved_clock() -> datetime:
    moved: datetime = read_clock() + timedelta(seconds=float(OFFSET.read_text()))
    return moved


vars(app)["now"] = moved_clock
sys.exit(main())
