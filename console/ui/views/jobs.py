"""The list of jobs, the page of a job, and forms of new jobs and versions."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from console.accounts.middleware import request_id_of
from console.accounts.refusals import Refused
from console.accounts.rights import define_refusal
from console.accounts.saved_views import view_query, views_of
from console.checkpoints.models import Status
from console.jobs import services
from console.jobs.editing import take_facts
from console.jobs.models import Job, JobVersion, Package, Pipeline
from console.jobs.pipelines import request_sync
from console.jobs.planned_differences import planned_differences
from console.metrics.recent import recent_numbers
from console.operations.legality import request_refusal
from console.operations.models import OperationKind
from console.operations.services import OperationRequestContext
from console.operations.services import request as request_operation
from console.pages import selectors
from console.pages.packages import packages_for
from console.runs.row_marks import listed_run_marks
from console.ui.forms.forms import NEW_VERSION, JobForm, PackageForm, VersionForms, add_refusal
from console.ui.inspector import Inspector
from console.ui.job_page import job_view
from console.ui.lists.job_filters import JobFilters, health_tally, sum_by
from console.ui.lists.job_list import job_lines, tally
from console.ui.live.job_rows import MarkedRows
from console.ui.live.page import LivePage, PageContent, page, require_login, user_of
from console.ui.live.revision import revision
from console.ui.paging import by_column, by_name, by_urgency, text, whole_number
from console.ui.plots.timeline import job_timeline
from console.ui.plots.window import chosen
from console.ui.tables.jobs import JOBS

_STATES_AGE_S = 10  #: of the states of an operator, whose manifest may be unreadable for a moment


class JobList(LivePage):
    template, blocks = "jobs/list.html", "jobs/_table.html"

    def open(self) -> None:
        self.filters, started = JobFilters.of(self.request.GET), timezone.now()
        rows = self.filters.found(started)
        self.counts = selectors.count_by(rows, "run_state", "shown_level")
        listed, after = self.filters.chosen(rows).select_related("health"), text(self.request.GET.get("after"))
        self.sort = text(self.request.GET.get("sort"))
        if self.sort == "name":
            self.jobs = by_name(listed, after)
        elif order := JOBS.order_of(self.sort):
            self.jobs = by_column(
                listed.annotate(**{self.sort.removeprefix("-"): order(started)}), self.sort, whole_number(after)
            )
        else:
            self.sort, self.jobs = "", by_urgency(listed, whole_number(after))
        self.health = {job.pk: getattr(job, "health", None) for job in self.jobs.rows}

    def content(self) -> PageContent:
        now = timezone.now()
        query = view_query(self.request.META["QUERY_STRING"])
        recent = recent_numbers([job.run_pk for job in self.jobs.rows if job.run_pk], now)
        return {
            "now": now,
            "filters": self.filters,
            "saved": views_of(user_of(self.request)),
            "query": query,
            "tally": tally(sum_by(self.counts, 0)),
            "health_tally": health_tally(sum_by(self.counts, 1)),
            "total": sum(self.counts.values()),
            "jobs": self.jobs,
            "lines": job_lines(selectors.job_rows(self.jobs.rows, now), recent, now),
            "sort": self.sort,
            "may_define": not define_refusal(self.request.user),
            "define_reason": define_refusal(self.request.user),
        }

    def rows(self) -> str:
        facts = [(job.pk, job.run_pk, job.checkpoint_pk, job.first_version) for job in self.jobs.rows]
        verdicts = [row for row in self.health.values() if row is not None]
        levels = [(row.run_id, row.run_state, row.level, row.sentence, row.silent_inputs) for row in verdicts]
        runs = listed_run_marks([job.run_pk for job in self.jobs.rows if job.run_pk])
        counts = sorted(self.counts.items(), key=str)
        return revision(self.request, selectors.rows_of_list(self.jobs.rows), runs, facts, levels, counts)


job_list = JobList.view()


class JobPage(LivePage):
    template, blocks = "jobs/detail.html", "jobs/_live.html"

    def open(self, pk: int) -> None:
        self.before, self.interval = whole_number(self.request.GET.get("before")), chosen(self.request.GET)
        self.marked = MarkedRows(pk, self.before, self.interval)

    def content(self) -> PageContent:
        now = timezone.now()
        is_detailed = self.request.GET.get("graph") == "detailed"
        view = job_view(self.marked.rows(), self.request.user, now, self.before, self.interval, is_detailed=is_detailed)
        inspector = Inspector(view, text(self.request.GET.get("node")), now)
        newest = view.newest_restorable
        return {
            "now": now,
            "job": view.page.job,
            "view": view,
            "inspector": inspector,
            "timeline": job_timeline(view.page, self.request.GET, now),
            "picture": view.picture,
            "picture_title": f"Job graph of {view.page.job.name}",
            "define_reason": define_refusal(self.request.user),
            "keys": self.marked.block_keys(
                strip=view.page.proof,
                checkpoints=view.live.checkpoint,
                causes=inspector.uid,
                states=(inspector.uid, newest.pk if newest else None, int(now.timestamp()) // _STATES_AGE_S),
            ),
        }

    def rows(self) -> str:
        return self.marked.revision(self.request)


detail = JobPage.view()


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def new_job(request: HttpRequest) -> HttpResponse:
    """A page for the choice of a pipeline, then a page with the pipeline's form: two pages need no scripts."""
    like = _duplicated_version(request)
    name = like.job.pipeline if like else text(request.POST.get("pipeline") or request.GET.get("pipeline"))
    pipeline = Pipeline.objects.filter(pk=name).first() if name else None
    reason = define_refusal(request.user)
    if pipeline is None or pipeline.error or reason:
        if not reason:
            request_sync()
        choice: dict[str, object] = {"pipelines": Pipeline.objects.all(), "reason": reason}
        choice["broken" if pipeline else "unknown"] = pipeline or name
        return page(request, "jobs/choose.html", choice, status=403 if reason else 200)
    if before := _made_before(request):
        return before
    data = request.POST if request.method == "POST" else None
    schema, package = _chosen_code(pipeline, like, data)  # it keeps the package of `like`, unless another is chosen
    form, version = JobForm.of(data, like), VersionForms(schema, data, like=like, package=package)
    if data is not None:
        job = _define(request, form, version, pipeline, like)
        if job is not None:
            starts = " The job starts once it is ready." if request.POST.get("start") else ""
            messages.info(request, f"Job {job.name} was created. Version 1 is being compiled.{starts}")
            return redirect("ui:job", job.pk)
        if before := _made_before(request):  # an earlier submission of this form created the job
            return before
    context = {"pipeline": pipeline, "form": form, "version": version, "like": like}
    context["start_reason"] = request_refusal(OperationKind.START, request.user)
    return _form_page(request, "jobs/new.html", context, data)


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def new_version(request: HttpRequest, pk: int) -> HttpResponse:
    job = get_object_or_404(Job, pk=pk)
    if before := _made_before(request):
        return before
    pipeline = Pipeline.objects.filter(pk=job.pipeline).first()
    newest = job.versions.order_by("-number").first()
    data = request.POST if request.method == "POST" else None
    # A new version keeps the package of the newest, which need not be the newest package of the pipeline.
    schema, package = _chosen_code(pipeline, newest, data)
    forms = VersionForms(schema, data, like=newest, fixed_by=_newest_state(job), package=package)
    planned, compares = None, request.POST.get("act") == "compare"
    if data is not None and forms.is_valid():
        try:
            if compares:
                planned = planned_differences(user_of(request), job, _compared_values(forms))
            else:
                version = services.create_version(
                    user_of(request), job, **forms.values, request_key=_request_key(request)
                )
                messages.info(request, NEW_VERSION.format(version.number))
                return redirect("ui:job", job.pk)
        except Refused as refused:
            forms.add_refusal(refused)
    context = {"job": job, "pipeline": pipeline, "version": forms, "newest": newest, "planned": planned,
               "to_create": {"number": "to be created"}}  # fmt: skip
    return _form_page(request, "jobs/new_version.html", context, None if planned is not None else data)


def _chosen_code(
    pipeline: Pipeline | None, like: JobVersion | None, data: Any
) -> tuple[Mapping[str, Any], PackageForm | None]:
    """The schema of the parameters in the chosen package, and the form of the choice; None if there is no choice.

    Without a choice yet, the package is that of `like`, else the newest that offers the pipeline.
    """
    if pipeline is None:
        return (like.parameter_schema({}) if like else {}), None
    package = like.package if like else pipeline.package
    packages = packages_for(pipeline, package)
    chosen = text((data or {}).get("package"))
    if chosen in {each.digest for each in packages}:
        package = Package.objects.get(pk=chosen)
    elif data is not None and "package" in data and not chosen:
        package = None
    schema = package.schema_of(pipeline.name) if package else pipeline.schema
    if not packages:
        return schema, None
    digest = package.pk if package else ""
    return schema, PackageForm(packages, digest, data, has_installed_code=pipeline.package is None)


def _newest_state(job: Job) -> str:
    """The newest checkpoint of `job` that has files; "" without one."""
    stored = job.checkpoints.filter(status=Status.COMPLETED, discarded_at=None).only("number", "kind")
    newest = stored.order_by("-number").first()
    return str(newest or "")


def _compared_values(forms: VersionForms) -> dict[str, Any]:
    """The values of a version without its message, in which versions always differ."""
    return {name: value for name, value in forms.values.items() if name != "message"}


def _duplicated_version(request: HttpRequest) -> JobVersion | None:
    """The version whose definition the new job gets; None for a job that begins with an empty form."""
    number = whole_number(request.POST.get("duplicate") or request.GET.get("duplicate"))
    return None if number is None else get_object_or_404(JobVersion.objects.select_related("job"), pk=number)


def _define(
    request: HttpRequest, form: JobForm, version: VersionForms, pipeline: Pipeline, like: JobVersion | None
) -> Job | None:
    """Creates a job and its first version, and requests its start if that was chosen: all or nothing.

    None if a form has errors.
    """
    if not all([form.is_valid(), version.is_valid()]):
        return None
    user, step = user_of(request), "job"
    try:
        with transaction.atomic():
            job = services.create_job(user, pipeline=pipeline.name, **form.cleaned_data)
            if like is not None:
                take_facts(like.job, job)
            step = "version"
            services.create_version(user, job, **version.values, request_key=_request_key(request), like=like)
            if request.POST.get("start"):
                step = "start"
                context = OperationRequestContext(user=user, request_id=request_id_of(request))
                request_operation(context, job, OperationKind.START, {"when_ready": True})
    except Refused as refused:
        if step != "version":
            add_refusal(form, refused.field or "", refused)
        else:
            version.add_refusal(refused)
        return None
    return job


def _made_before(request: HttpRequest) -> HttpResponse | None:
    """The redirect for a form that was submitted before, by a double click or a reload."""
    version = services.version_by_request(user_of(request), _request_key(request))
    if version is None:
        return None
    messages.info(request, f"This form has already created version {version.number} of {version.job.name}.")
    return redirect("ui:job", version.job_id)


def _request_key(request: HttpRequest) -> str | None:
    """Idempotency key: the same form with the same values is the same request."""
    if not request.POST.get("key"):
        return None
    values = sorted((name, texts) for name, texts in request.POST.lists() if name != "csrfmiddlewaretoken")
    return hashlib.sha256(msgspec.json.encode([request.path, values])).hexdigest()


def _form_page(request: HttpRequest, template: str, context: dict[str, Any], data: Any) -> HttpResponse:
    """A form; with errors its status is 422, as in the API."""
    reason = define_refusal(request.user)
    values = {"reason": reason, "sent_back": data is not None, **context}
    return page(request, template, values, status=200 if data is None else 422)
