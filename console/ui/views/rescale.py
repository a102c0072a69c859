"""The page that rescales a running job: version and parallelism of the run that continues from its savepoint."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect

from console import formats
from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint
from console.jobs.models import Job, JobVersion, Run
from console.jobs.services import ready_versions
from console.operations.legality import allowed_operation
from console.operations.models import OperationKind
from console.operations.restores.rescale_plan import rescale_cost, rescale_hash
from console.operations.selectors import active_operations
from console.pages.lineage import rescales_of
from console.pages.selectors import rows_of_confirmation
from console.runs.selectors import latest_run
from console.ui.forms.forms import RescaleForm, add_refusal
from console.ui.live.page import LivePage, PageContent, asks_for_limit, page
from console.ui.live.revision import revision
from console.ui.paging import whole_number
from console.ui.views.actions import request_operation

_RESCALES = 20  #: newest rescales on the page
_FIGURES = "rescale-figures"  #: the part of the page that a script asks for after a choice


@dataclass(frozen=True, slots=True)
class _Figure:
    """A figure of the run now, and of the run that continues."""

    term: str
    now: str
    after: str


class RescalePage(LivePage):
    """GET shows what a rescale does, and stays live. POST requests it for the run that was shown."""

    template, blocks = "jobs/rescale.html", "jobs/_rescale_live.html"

    def open(self, pk: int) -> HttpResponse | None:
        self.job = get_object_or_404(Job, pk=pk)
        self.run, self.status = latest_run(self.job), 200
        defaults = {"version": self.run.version_id, "parallelism": self.run.parallelism} if self.run else {}
        self.asks_for_figures = self.request.headers.get("HX-Target") == _FIGURES
        values = self.request.GET if asks_for_limit(self.request) or self.asks_for_figures else defaults
        self.form = RescaleForm(self.request.POST if self.request.method == "POST" else values)
        if self.request.method == "POST":
            self.status = 422
            if self.form.is_valid():
                try:
                    params = {"plan_hash": plan_hash} if (plan_hash := self.request.POST.get("plan_hash")) else {}
                    request_operation(
                        self.request, self.job, OperationKind.RESCALE, {**self.form.cleaned_data, **params}
                    )
                except Refused as refused:
                    self.status = refused.status
                    add_refusal(self.form, (refused.field or "").removeprefix("params."), refused)
                else:
                    return redirect("ui:job", self.job.pk)
        return None

    def response(self) -> HttpResponse:
        if self.asks_for_figures:
            return page(self.request, "jobs/_rescale_figures.html", self.content())
        if asks_for_limit(self.request):
            return page(self.request, "jobs/_parallelism_field.html", self.content())
        return super().response()

    def content(self) -> PageContent:
        versions, active, present = (
            tuple(ready_versions(self.job)),
            tuple(active_operations(self.job)),
            rescale_hash(self.run),
        )
        is_poll, cost = "HX-Request" in self.request.headers, rescale_cost(self.job, self.run)
        return {
            "job": self.job,
            "run": self.run,
            "form": self.form,
            "act": allowed_operation(OperationKind.RESCALE, self.job, self.run, self.request.user, active),
            "active": active,
            "versions": versions,
            "limit": self.form.limit(versions),
            "cost": cost,
            "figures": tuple(_figures(self.run, self.form, versions, cost.newest)) if self.run else (),
            "slot_timeout_ms": self.run.version.settings.get("slot_request_timeout_ms") if self.run else None,
            "plan_hash": present,
            "is_outdated": is_poll and self.request.GET.get("plan_hash", "") != present,
            "rescales": rescales_of(self.job, _RESCALES),
        }

    def rows(self) -> str:
        return revision(self.request, rows_of_confirmation(self.job))


rescale = RescalePage.view(posts=True)


def _figures(
    run: Run, form: RescaleForm, versions: Sequence[JobVersion], newest: Checkpoint | None
) -> Iterator[_Figure]:
    """The figures of `run`, and those of the version and the parallelism in the form, as far as they are possible."""
    choice = {name: whole_number(str(form[name].value() or "")) for name in ("version", "parallelism")}
    version = next((version for version in versions if version.pk == choice["version"]), None)
    limit, parallelism = form.limit(versions), choice["parallelism"]
    if version is None or not parallelism or limit is None or parallelism > limit:
        version = parallelism = None
    yield _Figure("Version", str(run.version.number), str(version.number) if version else formats.NO_VALUE)
    yield _Figure("Parallelism, and slots", str(run.parallelism), str(parallelism or formats.NO_VALUE))
    yield _Figure(
        "Key groups per subtask", _key_groups(run.version, run.parallelism), _key_groups(version, parallelism)
    )
    size = newest.size_bytes if newest else None
    if size is not None:
        yield _Figure("Mean state per subtask", _mean_size(size, run.parallelism), _mean_size(size, parallelism))


def _mean_size(size: int, parallelism: int | None) -> str:
    return str(formats.size(round(size / parallelism))) if parallelism else formats.NO_VALUE


def _key_groups(version: JobVersion | None, parallelism: int | None) -> str:
    """Key groups of a subtask: a number, or two neighbouring numbers if the subtasks cannot have equally many."""
    if version is None or not parallelism:
        return formats.NO_VALUE
    least, remainder = divmod(version.max_parallelism, parallelism)
    return f"{least} or {least + 1}" if remainder else str(least)
