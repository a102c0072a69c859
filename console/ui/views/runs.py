"""The page of a run."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_safe

from console.checkpoints.models import Checkpoint
from console.jobs.models import Attempt, Run
from console.jobs.services import pipeline_schema
from console.operations.models import Operation
from console.operations.selectors import with_runs
from console.ui.jobhealth import health_line
from console.ui.revision import revision
from console.ui.runlog import LEVELS, LogFilter, log_file, log_size, plain_log
from console.ui.runpage import run_view
from console.ui.views.page import PageContent, page_or_blocks, require_login

_OPERATIONS = 20  #: newest operations on the page


@require_safe
@require_login
def run(request: HttpRequest, pk: int) -> HttpResponse:
    rows = Run.objects.select_related("job__health", "version", "restore_checkpoint", "created_by")
    found = get_object_or_404(rows.defer("live", "restore_checkpoint__acknowledgements"), pk=pk)
    operations = with_runs(Operation.objects.filter(run=found))

    def load_content() -> PageContent:
        context = {
            "job": found.job,
            "run": found,
            "health": health_line(found, getattr(found.job, "health", None), timezone.now()),
            "view": run_view(found, pipeline_schema(found.job.pipeline), LogFilter.of(request.GET)),
            "levels": LEVELS,
            "operations": tuple(operations[:_OPERATIONS]),
        }
        return PageContent(context, settled=found.is_terminal)

    def load_revision() -> str:
        attempts = (Attempt.objects.filter(run=found).order_by("-token"), _OPERATIONS)
        newest = (Checkpoint.objects.filter(run=found).order_by("-number"), 1)
        own = (Operation.objects.filter(run=found).order_by("-created_at", "-pk"), _OPERATIONS)
        return revision(request, [attempts, newest, own], found.state, log_size(found))

    return page_or_blocks(request, "runs/detail.html", "runs/_live.html", load_content, load_revision)


@require_safe
@require_login
def log(request: HttpRequest, pk: int) -> HttpResponse:
    """The log of the job master as a file, without secrets."""
    found = get_object_or_404(Run.objects.select_related("job", "version").defer("live"), pk=pk)
    text = plain_log(log_file(found), found.version.params, pipeline_schema(found.job.pipeline))
    if text is None:
        raise Http404("this host does not have the log")
    response = HttpResponse(text, content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="run-{pk}.log"'
    return response
