"""The web operations console: definitions, runs, checkpoints and operations as Postgres rows.

    urls | tasks → ui | api → operations → checkpoints → runs → jobs → accounts

The console never imports an engine. It exchanges rows and command lines with `runtime` and `spark_jobs`, and
imports from `runtime` only modules without I/O, such as `runtime.core.job.lifecycle` and `runtime.core.job.graph`.
"""

from console.celery import app as celery_app

__all__ = ["celery_app"]
