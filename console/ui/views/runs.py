"""The page of a run, its log, and the subtasks of its operators."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_safe

from console.checkpoints.models import Checkpoint
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
from console.ui.jobhealth import health_line
from console.ui.paging import text, whole_number
from console.ui.revision import revision
from console.ui.runpage import run_view
from console.ui.subtaskpage import subtask_page
from console.ui.views.page import PageContent, page_or_blocks, require_login

_OPERATIONS = 20  #: newest operations on the page
_SUBTASK_CHECKPOINTS = 2  #: under way, and completed before


@require_safe
@require_login
def run(request: HttpRequest, pk: int) -> HttpResponse:
    rows = Run.objects.select_related("job__health", "version", "restore_checkpoint", "created_by")
    found, logs = run_with_slot_logs(rows.defer("restore_checkpoint__acknowledgements"), pk)
    slot = whole_number(request.GET.get("slot"))
    operations = with_runs(Operation.objects.filter(run=found))

    def load_content() -> PageContent:
        context = {
            "job": found.job,
            "run": found,
            "health": health_line(found, getattr(found.job, "health", None), timezone.now()),
            "view": run_view(found, pipeline_schema(found.job.pipeline), LogFilter.of(request.GET), logs, slot),
            "levels": LEVELS,
            "operations": tuple(operations[:_OPERATIONS]),
        }
        return PageContent(context, settled=found.is_terminal)

    def load_revision() -> str:
        attempts = (Attempt.objects.filter(run=found).order_by("-token"), _OPERATIONS)
        newest = (Checkpoint.objects.filter(run=found).order_by("-number"), 1)
        own = (Operation.objects.filter(run=found).order_by("-created_at", "-pk"), _OPERATIONS)
        return revision(
            request, [attempts, newest, own], found.state, log_size(slot_file(logs, slot) or log_file(found))
        )

    return page_or_blocks(request, "runs/detail.html", "runs/_live.html", load_content, load_revision)


@require_safe
@require_login
def subtasks(request: HttpRequest, pk: int) -> HttpResponse:
    """All subtasks of the operator in the address, by pages. `after` is the number of rows before the page."""
    found = get_object_or_404(Run.objects.select_related("job", "version").defer("live"), pk=pk)
    uid, operators = text(request.GET.get("operator")), (found.version.graph or {}).get("operators", ())
    operator = next((each for each in operators if each["uid"] == uid), None)
    if operator is None:
        raise Http404(f"the run has no operator {uid!r}")
    sort, after = text(request.GET.get("sort")), whole_number(request.GET.get("after")) or 0

    def load_content() -> PageContent:
        shown = subtask_page(found, operator, sort, after, timezone.now())
        context = {"job": found.job, "run": found, "operator": operator, "shown": shown, "sort": shown.sort}
        return PageContent(context, settled=found.is_terminal)

    def load_revision() -> str:
        newest = (Checkpoint.objects.filter(run=found).order_by("-number"), _SUBTASK_CHECKPOINTS)
        return revision(request, [newest], newest_interval(found), found.state)

    return page_or_blocks(request, "runs/subtasks.html", "runs/_subtasks_live.html", load_content, load_revision)


@require_safe
@require_login
def log(request: HttpRequest, pk: int) -> HttpResponse:
    """The log of the job master, or of a slot, as a file without secrets."""
    found, logs = run_with_slot_logs(Run.objects.select_related("job", "version"), pk)
    slot = whole_number(request.GET.get("slot"))
    file = log_file(found) if slot is None else slot_file(logs, slot)
    lines = file and plain_log(file, LogSecrets.of(found))
    if lines is None:
        raise Http404("this host does not have the log")
    response = HttpResponse(lines, content_type="text/plain; charset=utf-8")
    name = f"run-{pk}.log" if slot is None else f"run-{pk}-slot-{slot}.log"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
