"""The page that rescales a running job: version and parallelism of the run that continues from its savepoint."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods

from console.accounts.refusals import Refused
from console.jobs.models import Job
from console.jobs.services import parallelism_limit, ready_versions
from console.operations.legality import allowed_operation
from console.operations.lineage import rescales_of
from console.operations.models import OperationKind
from console.operations.rescale_plan import rescale_cost
from console.operations.selectors import latest_run
from console.ui.forms import RescaleForm, add_refusal
from console.ui.views.actions import request_operation
from console.ui.views.page import page, require_login

_RESCALES = 20  #: newest rescales on the page


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def rescale(request: HttpRequest, pk: int) -> HttpResponse:
    job = get_object_or_404(Job, pk=pk)
    run, status = latest_run(job), 200
    own = {"version": run.version_id, "parallelism": run.parallelism} if run else {}
    form = RescaleForm(request.POST if request.method == "POST" else own)
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                request_operation(request, job, OperationKind.RESCALE, form.cleaned_data)
            except Refused as refused:
                status = refused.status
                add_refusal(form, (refused.field or "").removeprefix("params."), refused)
            else:
                return redirect("ui:job", job.pk)
    versions = tuple(ready_versions(job))
    context = {
        "job": job,
        "run": run,
        "form": form,
        "act": allowed_operation(OperationKind.RESCALE, job, run, request.user),
        "versions": versions,
        "limit": max(map(parallelism_limit, versions), default=None),
        "cost": rescale_cost(job, run),
        "rescales": rescales_of(job, _RESCALES),
    }
    return page(request, "jobs/rescale.html", context, status=status)
