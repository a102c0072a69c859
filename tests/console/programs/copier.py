"""A pass over the copies of savepoints that pauses before its second file in `first`, until its input has a line."""

import itertools
import sys
from typing import Any

import django

django.setup()

from console.housekeeping.advance import advance_operations  # noqa: E402  # after the setup

_files = itertools.count()


def pause(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and arguments[1] == "x" and "/first/" in str(arguments[0]) and next(_files) == 1:
        sys.stdout.write("paused\n")
        sys.stdout.flush()
        sys.stdin.readline()


sys.addaudithook(pause)
advance_operations()
