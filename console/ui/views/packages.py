"""The pages of the packages: their list with sizes, and one with the versions that name it."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from console.accounts.refusals import Refused
from console.accounts.rights import delete_package_refusal
from console.housekeeping.packages import delete_package, deletion_refusal
from console.jobs.models import Package
from console.pages.packages import MAX_LINES, package_line, package_lines, package_totals, versions_with
from console.ui.live.page import page, require_login, user_of


@require_safe
@require_login
def package_list(request: HttpRequest) -> HttpResponse:
    context = {"section": "cluster", "packages": package_lines(), "totals": package_totals(), "most": MAX_LINES,
               "days": settings.WEIR_PACKAGE_DAYS}  # fmt: skip
    return page(request, "packages/list.html", context)


@require_safe
@require_login
def package(request: HttpRequest, pk: str) -> HttpResponse:
    line = package_line(pk)
    if line is None:
        raise Http404
    refusal = delete_package_refusal(request.user) or deletion_refusal(Package.objects.defer("description").get(pk=pk))
    context: dict[str, Any] = {"section": "cluster", "package": line, "versions": versions_with(pk),
                               "refusal": refusal, "days": settings.WEIR_PACKAGE_DAYS}  # fmt: skip
    return page(request, "packages/detail.html", context)


@require_POST
@require_login
def delete(request: HttpRequest, pk: str) -> HttpResponse:
    try:
        if not delete_package(user_of(request), pk):
            raise Http404
    except Refused as refused:
        messages.error(request, refused.detail)
        return redirect("ui:package", pk)
    if Package.objects.filter(pk=pk).exists():
        messages.warning(request, f"The package {pk} is being deleted: its file stays until the storage answers.")
    else:
        messages.success(request, f"The package {pk} is deleted.")
    return redirect("ui:packages")
