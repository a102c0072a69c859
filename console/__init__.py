"""The web operations console: definitions, runs, checkpoints and operations as Postgres rows.

    urls → ui | api → operations → checkpoints → jobs → accounts

It never imports an engine: it meets runtime and spark_jobs in rows and command lines, and shares with them only values
(`runtime.core.lifecycle`, `runtime.core.graph`).
"""

from console.celery import app as celery_app

__all__ = ["celery_app"]
