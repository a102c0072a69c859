"""Starts that wait until their version is compiled. They have no run before.

The reconciler starts the run, or ends the operation with the rejection of the version. Each pass reads the rows alone,
so a console that dies continues with the next pass.
"""

from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from console.accounts.refusals import Refused
from console.jobs.models import JobVersion, VersionState
from console.operations import services
from console.operations.models import Operation, OperationState
from console.operations.new_runs import waiting_starts
from console.operations.params import StartParams


def advance_waiting_starts() -> None:
    """Starts the runs of compiled versions, and ends the starts of versions that cannot run."""
    for pk in waiting_starts().values_list("pk", flat=True):
        with transaction.atomic():
            rows = waiting_starts().select_for_update(of=("self",), no_key=True, skip_locked=True)
            row = rows.select_related("job").filter(pk=pk).first()
            if row is not None:
                _advance(row)


def _advance(row: Operation) -> None:
    version = row.params["version"]
    if JobVersion.objects.filter(pk=version, state=VersionState.COMPILING).exists():
        return
    wanted = StartParams(
        version=version,
        parallelism=row.params.get("parallelism"),
        accept_repeated_output=row.params.get("accept_repeated_output", False),
    )
    try:
        with transaction.atomic():
            services.accept(row, wanted)
    except Refused as refused:
        _fail(row, refused.code, refused.detail)
    except IntegrityError:
        _fail(row, "run-active", "Another run was started meanwhile.")


def _fail(row: Operation, code: str, message: str) -> None:
    Operation.objects.filter(pk=row.pk).update(
        state=OperationState.FAILED, phase="", ended_at=Now(), error={"code": code, "message": message}
    )
