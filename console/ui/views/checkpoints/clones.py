"""A clone or a restore drill of a snapshot, beside the running job."""

from collections.abc import Sequence
from typing import Any

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect

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
from console.ui.forms.forms import CloneForm, add_refusal
from console.ui.live.page import LivePage, PageContent, asks_for_limit, page
from console.ui.live.revision import revision
from console.ui.paging import whole_number
from console.ui.views.actions import request_operation


class ClonePage(LivePage):
    """GET shows what a clone or a drill does, and stays live; POST requests the `kind` in the form.

    A script asks by GET for the commands that do the same as the form with its present values.
    """

    template, blocks = "checkpoints/clone.html", "checkpoints/_clone_live.html"

    def open(self, pk: int) -> HttpResponse | None:
        self.checkpoint = get_object_or_404(Checkpoint.objects.select_related("job", "run"), pk=pk)
        self.versions, self.status = tuple(ready_versions(self.checkpoint.job)), 200
        newest = self.versions[0] if self.versions else None
        defaults: dict[str, Any] = {"version": newest.pk, "parallelism": newest.parallelism} if newest else {}
        self.form = CloneForm(
            self.request.POST if self.request.method == "POST" else {**defaults, **self.request.GET.dict()}
        )
        if self.request.method == "POST":
            self.status = 422
            kind = OperationKind.DRILL if self.request.POST.get("kind") == OperationKind.DRILL else OperationKind.CLONE
            if self.form.is_valid():
                try:
                    request_operation(
                        self.request, self.checkpoint.job, kind, _params(self.checkpoint, self.form.cleaned_data)
                    )
                except Refused as refused:
                    self.status = refused.status
                    add_refusal(self.form, (refused.field or "").removeprefix("params."), refused)
                else:
                    return (
                        redirect("ui:checkpoint", self.checkpoint.pk)
                        if kind is OperationKind.DRILL
                        else redirect("ui:jobs")
                    )

        self.wanted = _wanted(self.form, self.versions)
        if self.request.headers.get("HX-Target") == "commands":
            context = {"job": self.checkpoint.job, "checkpoint": self.checkpoint, "wanted": self.wanted}
            return page(self.request, "checkpoints/_clone_commands.html", context)
        return None

    def response(self) -> HttpResponse:
        if asks_for_limit(self.request):
            return page(self.request, "jobs/_parallelism_field.html", self.content())
        return super().response()

    def content(self) -> PageContent:
        earlier = drills_of(self.checkpoint.job).filter(state=OperationState.SUCCEEDED)[:1]
        return {
            "job": self.checkpoint.job,
            "checkpoint": self.checkpoint,
            "form": self.form,
            "wanted": self.wanted,
            "versions": self.versions,
            "limit": self.form.limit(self.versions),
            "clone": allowed_on(self.checkpoint, OperationKind.CLONE, self.request.user),
            "drill": allowed_on(self.checkpoint, OperationKind.DRILL, self.request.user),
            "active": tuple(operations_beside(self.checkpoint)),
            "wait": wait_of_new_run(),
            "earlier": next(iter(earlier), None),
        }

    def rows(self) -> str:
        return revision(self.request, rows_of_snapshot_confirmation(self.checkpoint), wait_of_new_run())


clone = ClonePage.view(posts=True)


def _wanted(form: CloneForm, versions: Sequence[JobVersion]) -> dict[str, Any]:
    """The values of the form, as far as they are valid, for the commands that do the same."""
    number = whole_number(str(form["version"].value() or ""))
    return {
        "version": next((version for version in versions if version.pk == number), None),
        "parallelism": whole_number(str(form["parallelism"].value() or "")),
        "name": form["name"].value(),
        "allow_unmapped": form["allow_unmapped"].value(),
    }


def _params(checkpoint: Checkpoint, values: dict[str, Any]) -> dict[str, Any]:
    params = {name: value for name, value in values.items() if value}
    return {"checkpoint": checkpoint.pk, **params}
