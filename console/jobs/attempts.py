"""The number of an attempt within its run.

The token of an attempt counts over all runs. It fences older processes, and logs name it; it does not show how often a
run has started.
"""

from typing import Any

from django.db.models import Count, F, Max, OuterRef, QuerySet, Subquery, Window
from django.db.models.functions import Coalesce, RowNumber

from console.jobs.models import Attempt


def with_numbers(attempts: QuerySet[Attempt]) -> QuerySet[Any]:
    """The attempts annotated with `number`, from 1. `attempts`: all attempts of their runs."""
    number = Window(RowNumber(), partition_by="run", order_by="token")
    return attempts.annotate(number=number + F("run__removed_attempts"))


def attempt_number() -> Coalesce:
    """The number of the attempt that a row with `run` and `token` names: an annotation; 0 without attempts of the run.

    It reads the attempts of a run for each row; `with_numbers` reads them once.
    """
    until = Attempt.objects.filter(run=OuterRef("run"), token__lte=OuterRef("token")).order_by().values("run")
    number = until.values(number=Count("pk") + Max("run__removed_attempts"))
    return Coalesce(Subquery(number), 0)
