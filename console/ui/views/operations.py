"""The list of operations and the page of an operation."""

from collections.abc import Sequence
from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST, require_safe

from console.accounts.refusals import Refused
from console.accounts.rights import operate_refusal
from console.checkpoints.models import Checkpoint, large_columns
from console.csv_files import csv_file
from console.jobs.models import Run
from console.metrics.live import CheckpointLive, live_metrics
from console.operations.expected_times import expected_duration
from console.operations.models import Operation
from console.operations.registry import operation_type
from console.operations.selectors import with_runs
from console.operations.services import withdraw_operation
from console.ui.operationlist import OperationFilters, csv_rows
from console.ui.operationphases import operation_phases
from console.ui.paging import by_time, uuid
from console.ui.revision import revision
from console.ui.tables.operations import OPERATIONS
from console.ui.views.page import PageContent, page_or_blocks, require_login, user_of

_RELATED = ("job", "part_of", "run__version", "run__restore_checkpoint", "requested_by")
_LARGE = large_columns("run__restore_checkpoint")
_PARTS = 3  #: more than any operation has
_PARAMS_SHOWN_FROM_RUN = ("checkpoint", "version", "parallelism")  #: ids; the page shows the run's numbers instead


@require_safe
@require_login
def operation_list(request: HttpRequest) -> HttpResponseBase:
    filters = OperationFilters.of(request.GET)
    found = filters.apply(with_runs(Operation.objects.all()))
    if request.GET.get("format") == "csv":
        return csv_file("operations", OPERATIONS.fields, csv_rows(found))
    operations = by_time(found, uuid(request.GET.get("before")))

    def load_content() -> PageContent:
        return PageContent({"section": "operations", "operations": operations, "filters": filters}, settled=False)

    def load_revision() -> str:
        return revision(
            request, [(_operations_by_id(operations.rows), len(operations.rows) + 1)], _runs_of(operations.rows)
        )

    return page_or_blocks(request, "operations/list.html", "operations/_list_live.html", load_content, load_revision)


@require_safe
@require_login
def operation(request: HttpRequest, pk: UUID) -> HttpResponse:
    found = get_object_or_404(Operation.objects.select_related(*_RELATED).defer(*_LARGE), pk=pk)

    def load_content() -> PageContent:
        kind, checkpoint = operation_type(found.kind), _checkpoint_of(found)
        starts = found.run is not None and kind.begins_run
        context = {
            "section": "operations",
            "operation": found,
            "job": found.job,
            "starts": starts,
            "asked": {
                name: value for name, value in found.params.items() if not (starts and name in _PARAMS_SHOWN_FROM_RUN)
            },
            "progress": _progress(found),
            "expected": expected_duration(found.job_id, found.kind) if found.is_active else None,
            "parts": tuple(with_runs(found.parts.all())) if _has_parts(found) else (),
            "checkpoint": checkpoint,
            "phases": operation_phases(found, checkpoint),
            "withdrawal": (refused := kind.withdrawal_refusal(found) or operate_refusal(request.user)),
            "withdrawal_effect": "" if refused else kind.withdrawal_effect(found),
        }
        return PageContent(context, settled=not found.is_active)

    def load_revision() -> str:
        parts, run = found.parts.order_by("pk"), Run.objects.filter(operations=found)
        return revision(request, [(_operations_by_id([found]), 1), (run, 1), (parts, _PARTS)])

    return page_or_blocks(request, "operations/detail.html", "operations/_blocks.html", load_content, load_revision)


@require_POST
@require_login
def withdraw(request: HttpRequest, pk: UUID) -> HttpResponse:
    """Withdraws a request that no job master has begun, a restore that waits, or work of the console."""
    try:
        withdraw_operation(user_of(request), get_object_or_404(Operation, pk=pk))
        messages.info(request, "The request is withdrawn.")
    except Refused as refused:
        messages.error(request, refused.detail)
    return redirect("ui:operation", pk)


def _operations_by_id(rows: Sequence[Operation]) -> QuerySet[Operation]:
    return Operation.objects.filter(pk__in=[row.pk for row in rows]).order_by("-created_at", "-pk")


def _runs_of(rows: Sequence[Operation]) -> list[str]:
    return [row.run.state if row.run else "" for row in rows]


def _has_parts(found: Operation) -> bool:
    return operation_type(found.kind).is_succession or bool(found.params.get("target"))


def _progress(found: Operation) -> CheckpointLive | None:
    """The checkpoint in progress of an active operation."""
    if not found.is_active or found.run is None:
        return None
    under_way = live_metrics(found.run).checkpoint
    return under_way if under_way and under_way.kind == found.kind else None


def _checkpoint_of(found: Operation) -> Checkpoint | None:
    """The checkpoint in the operation's result, found by its number within the job."""
    number = found.result.get("checkpoint") if isinstance(found.result, dict) else None
    return Checkpoint.objects.filter(job=found.job_id, number=number).first() if isinstance(number, int) else None
