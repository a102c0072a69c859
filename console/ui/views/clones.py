"""A clone or a restore drill of a snapshot, beside the running job."""

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods

from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint
from console.jobs.models import JobVersion
from console.jobs.services import ready_versions
from console.operations.kinds.snapshot.drill import drills_of
from console.operations.legality import allowed_on
from console.operations.models import OperationKind, OperationState
from console.operations.selectors import operations_beside
from console.pages.selectors import rows_of_snapshot_confirmation
from console.pages.workers import wait_of_new_run
from console.ui.forms import CloneForm, add_refusal
from console.ui.paging import whole_number
from console.ui.revision import revision
from console.ui.views.actions import request_operation
from console.ui.views.page import PageContent, asks_for_limit, page, page_or_blocks, require_login


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def clone(request: HttpRequest, pk: int) -> HttpResponse:
    """GET shows what a clone or a drill does, and stays live; POST requests the `kind` in the form.

    A script asks by GET for the commands that do the same as the form with its present values.
    """
    found = get_object_or_404(Checkpoint.objects.select_related("job", "run"), pk=pk)
    versions, status = tuple(ready_versions(found.job)), 200
    newest = versions[0] if versions else None
    own: dict[str, Any] = {"version": newest.pk, "parallelism": newest.parallelism} if newest else {}
    form = CloneForm(request.POST if request.method == "POST" else {**own, **request.GET.dict()})
    if request.method == "POST":
        status = 422
        kind = OperationKind.DRILL if request.POST.get("kind") == OperationKind.DRILL else OperationKind.CLONE
        if form.is_valid():
            try:
                request_operation(request, found.job, kind, _params(found, form.cleaned_data))
            except Refused as refused:
                status = refused.status
                add_refusal(form, (refused.field or "").removeprefix("params."), refused)
            else:
                return redirect("ui:checkpoint", found.pk) if kind is OperationKind.DRILL else redirect("ui:jobs")

    wanted = _wanted(form, versions)
    if request.headers.get("HX-Target") == "commands":
        given = {"job": found.job, "checkpoint": found, "wanted": wanted}
        return page(request, "checkpoints/_clone_commands.html", given)

    def load_content() -> PageContent:
        earlier = drills_of(found.job).filter(state=OperationState.SUCCEEDED)[:1]
        context = {
            "job": found.job,
            "checkpoint": found,
            "form": form,
            "wanted": wanted,
            "versions": versions,
            "limit": form.limit(versions),
            "clone": allowed_on(found, OperationKind.CLONE, request.user),
            "drill": allowed_on(found, OperationKind.DRILL, request.user),
            "active": tuple(operations_beside(found)),
            "wait": wait_of_new_run(),
            "earlier": next(iter(earlier), None),
        }
        return PageContent(context, settled=False)

    def load_revision() -> str:
        return revision(request, rows_of_snapshot_confirmation(found), wait_of_new_run())

    if asks_for_limit(request):
        return page(request, "jobs/_parallelism_field.html", load_content().context)
    return page_or_blocks(
        request, "checkpoints/clone.html", "checkpoints/_clone_live.html", load_content, load_revision, status
    )


def _wanted(form: CloneForm, versions: Sequence[JobVersion]) -> dict[str, Any]:
    """The values of the form, as far as they are valid, for the commands that do the same."""
    number = whole_number(str(form["version"].value() or ""))
    return {
        "version": next((version for version in versions if version.pk == number), None),
        "parallelism": whole_number(str(form["parallelism"].value() or "")),
        "name": form["name"].value(),
        "allow_unmapped": form["allow_unmapped"].value(),
    }


def _params(found: Checkpoint, given: dict[str, Any]) -> dict[str, Any]:
    params = {name: value for name, value in given.items() if value}
    return {"checkpoint": found.pk, **params}
