"""The versions of a job and their differences, and the page that edits or archives a job."""

from typing import Any

from django.contrib import messages
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods, require_POST

from console.accounts.refusals import Refused
from console.accounts.rights import define_refusal
from console.jobs import editing
from console.jobs.differences import compared_versions, differences
from console.jobs.models import Job, JobVersion
from console.jobs.planned_differences import planned_differences
from console.jobs.services import create_version, parameter_schema, pipeline_schema
from console.runs.selectors import latest_run
from console.ui.forms.forms import NEW_VERSION, EditForm, YamlForm, add_refusal
from console.ui.live.page import LivePage, PageContent, page, require_login, user_of
from console.ui.live.revision import revision_of
from console.ui.paging import by_number, whole_number


class VersionList(LivePage):
    """The versions, newest first, and what changed between two of them: by default the newest and the one before."""

    template, blocks = "jobs/versions.html", "jobs/_versions_live.html"

    def open(self, pk: int) -> None:
        self.job = get_object_or_404(Job, pk=pk)
        rows: Any = self.job.versions.select_related("created_by").annotate(run_count=Count("runs")).order_by("-number")
        self.page = by_number(rows, whole_number(self.request.GET.get("before")))
        self.base, self.other = compared_versions(
            self.job, *map(whole_number, (self.request.GET.get("base"), self.request.GET.get("other")))
        )
        self.run = latest_run(self.job)

    def content(self) -> PageContent:
        return {
            "job": self.job,
            "versions": self.page,
            "lines": [(row, editing.deletion_refusal(row, has_run=bool(row.run_count))) for row in self.page.rows],
            "newest": self.page.rows[0].number if self.page.first and self.page.rows else None,
            "running": self.run.version_id if self.run and not self.run.is_terminal else None,
            "can_compare": len(self.page.rows) > 1,
            "base": self.base,
            "other": self.other,
            "differences": differences(self.base, self.other, pipeline_schema(self.job.pipeline))
            if self.base and self.other
            else (),
            "define_reason": define_refusal(self.request.user),
        }

    def rows(self) -> str:
        states = [(row.number, row.state, row.run_count) for row in self.page.rows]
        return revision_of(self.request, states, self.run and (self.run.version_id, self.run.is_terminal))


versions = VersionList.view()


@require_POST
@require_login
def change_version(request: HttpRequest, pk: int) -> HttpResponse:
    """Makes a new version equal to this one, or deletes this one if it was rejected and never ran."""
    version = get_object_or_404(JobVersion.objects.select_related("job"), pk=pk)
    try:
        if request.POST.get("act") == "delete":
            editing.delete_version(user_of(request), version)
            messages.info(request, f"Version {version.number} is deleted.")
        else:
            key = f"equal-{version.pk}-{request.POST['key']}" if request.POST.get("key") else None
            successor = editing.make_equal(user_of(request), version, key)
            messages.info(request, f"{NEW_VERSION.format(successor.number)} It is equal to version {version.number}.")
    except Refused as refused:
        messages.error(request, refused.detail)
    return redirect("ui:versions", version.job_id)


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def version_as_yaml(request: HttpRequest, pk: int) -> HttpResponse:
    """A new version as a YAML document instead of fields, or its differences from the newest."""
    job, status = get_object_or_404(Job, pk=pk), 200
    newest = job.versions.order_by("-number").first()
    schema = parameter_schema(newest) if newest else pipeline_schema(job.pipeline)
    reason, planned = define_refusal(request.user), None
    form = YamlForm.of(request.POST if request.method == "POST" and not reason else None, newest, schema)
    if request.method == "POST":
        status = 403 if reason else 422
        if form.is_valid():
            values, key = form.cleaned_data, request.POST.get("key")
            try:
                if request.POST.get("act") == "compare":
                    planned, status = planned_differences(user_of(request), job, values["document"]), 200
                else:
                    version = create_version(
                        user_of(request), job, **values["document"], message=values["message"],
                        request_key=f"yaml-{key}" if key else None,
                    )  # fmt: skip
                    messages.info(request, NEW_VERSION.format(version.number))
                    return redirect("ui:job", job.pk)
            except Refused as refused:
                status = refused.status
                form.add_error("document", refused.detail)
    context = {"job": job, "form": form, "newest": newest, "reason": reason, "planned": planned,
               "to_create": {"number": "to be created"}}  # fmt: skip
    return page(request, "jobs/yaml.html", context, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def edit_job(request: HttpRequest, pk: int) -> HttpResponse:
    job, status = get_object_or_404(Job, pk=pk), 200
    form = EditForm.of_job(job, request.POST if request.method == "POST" else None)
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                editing.edit_job(user_of(request), job, **form.cleaned_data)
            except Refused as refused:
                status = refused.status
                add_refusal(form, refused.field or "", refused)
            else:
                messages.success(request, "The job is changed.")
                return redirect("ui:job", job.pk)
    context = {"job": job, "form": form, "reason": define_refusal(request.user)}
    return page(request, "jobs/edit.html", context, status=status)


@require_POST
@require_login
def archive(request: HttpRequest, pk: int) -> HttpResponse:
    job = get_object_or_404(Job, pk=pk)
    archives = request.POST.get("act") != "bring_back"
    try:
        editing.archive_job(user_of(request), job, archived=archives)
        messages.info(request, "The job is archived." if archives else "The job is back in the list.")
    except Refused as refused:
        messages.error(request, refused.detail)
    return redirect("ui:job", job.pk)
