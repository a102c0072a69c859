"""The list of operations and the page of an operation."""

from collections.abc import Sequence
from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST

from console.accounts.refusals import Refused
from console.accounts.rights import operate_refusal
from console.checkpoints.models import Checkpoint, large_columns
from console.csv_files import csv_file
from console.jobs.models import Run
from console.metrics.live import CheckpointLive, live_metrics
from console.operations.expected_times import expected_duration
from console.operations.kinds.job.succession import Succession
from console.operations.models import Operation
from console.operations.registry import operation_type
from console.operations.selectors import with_runs
from console.operations.services import withdraw_operation
from console.ui.lists.operation_list import OperationFilters, csv_rows
from console.ui.live.page import LivePage, PageContent, require_login, user_of
from console.ui.live.revision import revision
from console.ui.operation_phases import operation_phases
from console.ui.paging import by_time, uuid
from console.ui.tables.operations import OPERATIONS

_RELATED = ("job", "part_of", "run__version", "run__restore_checkpoint", "requested_by")
_LARGE = large_columns("run__restore_checkpoint")
_PARTS = 3  #: more than any operation has
_PARAMS_SHOWN_FROM_RUN = ("checkpoint", "version", "parallelism")  #: ids; the page shows the run's numbers instead


class OperationList(LivePage):
    template, blocks = "operations/list.html", "operations/_list_live.html"

    def open(self) -> HttpResponseBase | None:
        self.filters = OperationFilters.of(self.request.GET)
        rows = self.filters.apply(with_runs(Operation.objects.all()))
        if self.request.GET.get("format") == "csv":
            return csv_file("operations", OPERATIONS.fields, csv_rows(rows))
        self.operations = by_time(rows, uuid(self.request.GET.get("before")))
        return None

    def content(self) -> PageContent:
        return {"section": "operations", "operations": self.operations, "filters": self.filters}

    def rows(self) -> str:
        return revision(
            self.request,
            [(_operations_by_id(self.operations.rows), len(self.operations.rows) + 1)],
            _runs_of(self.operations.rows),
        )


operation_list = OperationList.view()


class OperationPage(LivePage):
    template, blocks = "operations/detail.html", "operations/_blocks.html"

    def open(self, pk: UUID) -> None:
        self.operation = get_object_or_404(Operation.objects.select_related(*_RELATED).defer(*_LARGE), pk=pk)

    def content(self) -> PageContent:
        kind, checkpoint = operation_type(self.operation.kind), _checkpoint_of(self.operation)
        starts = self.operation.run is not None and kind.begins_run
        return {
            "section": "operations",
            "operation": self.operation,
            "job": self.operation.job,
            "starts": starts,
            "asked": {
                name: value
                for name, value in self.operation.params.items()
                if not (starts and name in _PARAMS_SHOWN_FROM_RUN)
            },
            "progress": _progress(self.operation),
            "expected": expected_duration(self.operation.job_id, self.operation.kind)
            if self.operation.is_active
            else None,
            "parts": tuple(with_runs(self.operation.parts.all())) if _has_parts(self.operation) else (),
            "checkpoint": checkpoint,
            "phases": operation_phases(self.operation, checkpoint),
            "withdrawal": (refused := kind.withdrawal_refusal(self.operation) or operate_refusal(self.request.user)),
            "withdrawal_effect": "" if refused else kind.withdrawal_effect(self.operation),
        }

    def rows(self) -> str:
        parts, run = self.operation.parts.order_by("pk"), Run.objects.filter(operations=self.operation)
        return revision(self.request, [(_operations_by_id([self.operation]), 1), (run, 1), (parts, _PARTS)])


operation = OperationPage.view()


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


def _has_parts(operation: Operation) -> bool:
    return isinstance(operation_type(operation.kind), Succession) or bool(operation.params.get("target"))


def _progress(operation: Operation) -> CheckpointLive | None:
    """The checkpoint in progress of an active operation."""
    if not operation.is_active or operation.run is None:
        return None
    under_way = live_metrics(operation.run).checkpoint
    return under_way if under_way and under_way.kind == operation.kind else None


def _checkpoint_of(operation: Operation) -> Checkpoint | None:
    """The checkpoint in the operation's result, found by its number within the job."""
    number = operation.result.get("checkpoint") if isinstance(operation.result, dict) else None
    return Checkpoint.objects.filter(job=operation.job_id, number=number).first() if isinstance(number, int) else None
