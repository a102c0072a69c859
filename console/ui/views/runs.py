"""The page of a run, its log, and the subtasks of its operators."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_safe

from console.checkpoints.models import Checkpoint
from console.health.verdicts import present_verdict
from console.jobs.models import Attempt, Run
from console.jobs.services import pipeline_schema
from console.metrics.selectors import newest_interval
from console.operations.models import Operation
from console.operations.selectors import with_runs
from console.runs.logs import (
    LEVELS,
    LogFilter,
    LogSecrets,
    log_file,
    log_size,
    plain_log,
    run_with_slot_logs,
    slot_file,
)
from console.ui.lists.subtask_page import subtask_page
from console.ui.live.page import LivePage, PageContent, require_login
from console.ui.live.revision import revision
from console.ui.paging import text, whole_number
from console.ui.run_page import run_view

_OPERATIONS = 20  #: newest operations on the page
_SUBTASK_CHECKPOINTS = 2  #: under way, and completed before


class RunPage(LivePage):
    template, blocks = "runs/detail.html", "runs/_live.html"

    def open(self, pk: int) -> None:
        rows = Run.objects.select_related("job__health", "version", "restore_checkpoint", "created_by")
        self.run, self.logs = run_with_slot_logs(rows.defer("restore_checkpoint__acknowledgements"), pk)
        self.health = present_verdict(self.run, timezone.now())
        self.slot = whole_number(self.request.GET.get("slot"))
        self.operations = with_runs(Operation.objects.filter(run=self.run))

    def content(self) -> PageContent:
        return {
            "job": self.run.job,
            "run": self.run,
            "health": self.health,
            "view": run_view(
                self.run,
                pipeline_schema(self.run.job.pipeline),
                LogFilter.of(self.request.GET),
                self.logs,
                self.slot,
            ),
            "levels": LEVELS,
            "operations": tuple(self.operations[:_OPERATIONS]),
        }

    def rows(self) -> str:
        attempts = (Attempt.objects.filter(run=self.run).order_by("-token"), _OPERATIONS)
        newest = (Checkpoint.objects.filter(run=self.run).order_by("-number"), 1)
        operations = (Operation.objects.filter(run=self.run).order_by("-created_at", "-pk"), _OPERATIONS)
        return revision(
            self.request,
            [attempts, newest, operations],
            self.run.state,
            self.health.health,
            log_size(slot_file(self.logs, self.slot) or log_file(self.run)),
        )


run = RunPage.view()


class SubtaskList(LivePage):
    """All subtasks of the operator in the address, by pages. `after` is the number of rows before the page."""

    template, blocks = "runs/subtasks.html", "runs/_subtasks_live.html"

    def open(self, pk: int) -> None:
        self.run = get_object_or_404(Run.objects.select_related("job", "version").defer("live"), pk=pk)
        uid, operators = text(self.request.GET.get("operator")), (self.run.version.graph or {}).get("operators", ())
        operator = next((each for each in operators if each["uid"] == uid), None)
        if operator is None:
            raise Http404(f"the run has no operator {uid!r}")
        self.operator = operator
        self.sort, self.after = text(self.request.GET.get("sort")), whole_number(self.request.GET.get("after")) or 0

    def content(self) -> PageContent:
        subtasks = subtask_page(self.run, self.operator, self.sort, self.after, timezone.now())
        return {
            "job": self.run.job,
            "run": self.run,
            "operator": self.operator,
            "shown": subtasks,
            "sort": subtasks.sort,
        }

    def rows(self) -> str:
        newest = (Checkpoint.objects.filter(run=self.run).order_by("-number"), _SUBTASK_CHECKPOINTS)
        return revision(self.request, [newest], newest_interval(self.run), self.run.state)


subtasks = SubtaskList.view()


@require_safe
@require_login
def log(request: HttpRequest, pk: int) -> HttpResponse:
    """The log of the job master, or of a slot, as a file without secrets."""
    run, logs = run_with_slot_logs(Run.objects.select_related("job", "version"), pk)
    slot = whole_number(request.GET.get("slot"))
    file = log_file(run) if slot is None else slot_file(logs, slot)
    lines = file and plain_log(file, LogSecrets.of(run))
    if lines is None:
        raise Http404("this host does not have the log")
    response = HttpResponse(lines, content_type="text/plain; charset=utf-8")
    name = f"run-{pk}.log" if slot is None else f"run-{pk}-slot-{slot}.log"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
