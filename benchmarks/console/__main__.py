"""Fills a database and requests each page and endpoint: `python -m benchmarks.console [--quick] [--times N] [--write]`.

The figures of each page are of Django's handler, without a web server: queries; median and 95th percentile in ms; mean
processor time of a request in ms, with the share of Postgres; and KB compressed. Of these, processor time changes
least while other programs use the machine. A CSV file is measured up to its first part: a download then begins.

The exit code is 1 if an answer has another status than 200, 204 or 304, takes more than 12 queries, or is a page of
more than 30 KB. It does not depend on times.
"""

import argparse
import os
import secrets
import sys
import tempfile
from pathlib import Path

from stack.services import start_postgres


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.console", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a history 50 times as short, to try the benchmark")
    parser.add_argument("--times", type=int, default=40, help="requests of each page")
    parser.add_argument("--only", default="", help="pages whose name contains this text")
    parser.add_argument("--write", action="store_true", help="write the figures to docs/benchmarks/console.md")
    arguments = parser.parse_args()
    if arguments.write and (arguments.quick or arguments.only):
        parser.error("--write needs a whole run, without --quick and --only")
    with tempfile.TemporaryDirectory(prefix="weir-bench-console-") as name:
        home = Path(name)
        home.chmod(0o711)  # the account of Postgres enters its own folder
        with start_postgres(home, durable=False) as server:
            os.environ |= {
                "DATABASE_URL": server.url,
                "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
                "DJANGO_SECRET_KEY": secrets.token_hex(32),
                "DJANGO_SETTINGS_MODULE": "console.settings",
                "WEIR_STORAGE": str(home / "storage"),
                "WEIR_VAR": str(home),
            }
            from benchmarks.console import filling, requests, results_page, tabs  # after the settings

            size = filling.QUICK if arguments.quick else filling.FULL
            filled = filling.fill(size)
            measured = requests.report(filled, arguments.times, arguments.only) if arguments.only != tabs.NAME else []
            times = tabs.report(filled) if arguments.only in ("", tabs.NAME) else None
            if arguments.write and times:
                results_page.write(measured, times, str(size))
            return int(any(each.faults for each in measured) or (times is not None and times.has_errors))


if __name__ == "__main__":
    sys.exit(main())
