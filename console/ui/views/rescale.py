"""The page that rescales a running job: version and parallelism of the run that continues from its savepoint."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods

from console.accounts.refusals import Refused
from console.jobs.models import Job
from console.jobs.services import ready_versions
from console.operations.legality import allowed_operation
from console.operations.lineage import rescales_of
from console.operations.models import OperationKind
from console.operations.rescale_plan import rescale_cost, rescale_hash
from console.operations.selectors import active_operations, latest_run, rows_of_confirmation
from console.ui.forms import RescaleForm, add_refusal
from console.ui.revision import revision
from console.ui.views.actions import request_operation
from console.ui.views.page import PageContent, asks_for_limit, page, page_or_blocks, require_login

_RESCALES = 20  #: newest rescales on the page


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def rescale(request: HttpRequest, pk: int) -> HttpResponse:
    """GET shows what a rescale does, and stays live. POST requests it for the run that was shown."""
    job = get_object_or_404(Job, pk=pk)
    run, status = latest_run(job), 200
    own = {"version": run.version_id, "parallelism": run.parallelism} if run else {}
    asked = request.GET if asks_for_limit(request) else own
    form = RescaleForm(request.POST if request.method == "POST" else asked)
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                shown = {"plan_hash": plan_hash} if (plan_hash := request.POST.get("plan_hash")) else {}
                request_operation(request, job, OperationKind.RESCALE, {**form.cleaned_data, **shown})
            except Refused as refused:
                status = refused.status
                add_refusal(form, (refused.field or "").removeprefix("params."), refused)
            else:
                return redirect("ui:job", job.pk)

    def load_content() -> PageContent:
        versions, active, present = tuple(ready_versions(job)), tuple(active_operations(job)), rescale_hash(run)
        is_poll = "HX-Request" in request.headers
        context = {
            "job": job,
            "run": run,
            "form": form,
            "act": allowed_operation(OperationKind.RESCALE, job, run, request.user, active),
            "active": active,
            "versions": versions,
            "limit": form.limit(versions),
            "cost": rescale_cost(job, run),
            "plan_hash": present,
            "is_outdated": is_poll and request.GET.get("plan_hash", "") != present,
            "rescales": rescales_of(job, _RESCALES),
        }
        return PageContent(context, settled=False)

    def load_revision() -> str:
        return revision(request, rows_of_confirmation(job))

    if asks_for_limit(request):
        return page(request, "jobs/_parallelism_field.html", load_content().context)
    return page_or_blocks(request, "jobs/rescale.html", "jobs/_rescale_live.html", load_content, load_revision, status)
