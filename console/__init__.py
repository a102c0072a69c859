"""The web operations console: definitions, runs, checkpoints and operations as Postgres rows.

    urls | tasks → ui | api → operations → checkpoints → runs → jobs → accounts

The console never imports an engine. It exchanges rows and command lines with `runtime` and `spark_jobs`, and shares
values only (`runtime.core.job.lifecycle`, `runtime.core.job.graph`).
"""

from console.celery import app as celery_app

__all__ = ["celery_app"]
