"""The versions of a job and their differences, and the page that edits or archives a job."""

from typing import Any

from django.contrib import messages
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console.accounts.refusals import Refused
from console.accounts.rights import define_refusal
from console.jobs import editing
from console.jobs.differences import compared_versions, differences
from console.jobs.models import Job, JobVersion
from console.jobs.planned_differences import planned_differences
from console.jobs.services import create_version, pipeline_schema
from console.runs.selectors import latest_run
from console.ui.forms import EditForm, YamlForm, add_refusal
from console.ui.paging import by_number, whole_number
from console.ui.revision import revision_of
from console.ui.views.page import PageContent, page, page_or_blocks, require_login, user_of


@require_safe
@require_login
def versions(request: HttpRequest, pk: int) -> HttpResponse:
    """The versions, newest first, and what changed between two of them: by default the newest and the one before."""
    job = get_object_or_404(Job, pk=pk)
    rows: Any = job.versions.select_related("created_by").annotate(run_count=Count("runs")).order_by("-number")
    shown = by_number(rows, whole_number(request.GET.get("before")))
    base, other = compared_versions(job, *map(whole_number, (request.GET.get("base"), request.GET.get("other"))))
    run = latest_run(job)

    def load_content() -> PageContent:
        context = {
            "job": job,
            "versions": shown,
            "lines": [(row, editing.deletion_refusal(row, has_run=bool(row.run_count))) for row in shown.rows],
            "newest": shown.rows[0].number if shown.first and shown.rows else None,
            "running": run.version_id if run and not run.is_terminal else None,
            "can_compare": len(shown.rows) > 1,
            "base": base,
            "other": other,
            "differences": differences(base, other, pipeline_schema(job.pipeline)) if base and other else (),
            "define_reason": define_refusal(request.user),
        }
        return PageContent(context, settled=False)

    def load_revision() -> str:
        states = [(row.number, row.state, row.run_count) for row in shown.rows]
        return revision_of(request, states, run and (run.version_id, run.is_terminal))

    return page_or_blocks(request, "jobs/versions.html", "jobs/_versions_live.html", load_content, load_revision)


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
            made = editing.make_equal(user_of(request), version, key)
            messages.info(
                request, f"Version {made.number} is equal to version {version.number}. The next start uses it."
            )
    except Refused as refused:
        messages.error(request, refused.detail)
    return redirect("ui:versions", version.job_id)


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def version_as_yaml(request: HttpRequest, pk: int) -> HttpResponse:
    """A new version as a YAML document instead of fields, or its differences from the newest."""
    job, status = get_object_or_404(Job, pk=pk), 200
    newest = job.versions.order_by("-number").first()
    schema = pipeline_schema(job.pipeline)
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
                    made = create_version(
                        user_of(request), job, **values["document"], message=values["message"],
                        request_key=f"yaml-{key}" if key else None,
                    )  # fmt: skip
                    messages.success(request, f"Version {made.number} was created. The next start or restore uses it.")
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
