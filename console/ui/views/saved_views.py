"""Saved views of the list of jobs, on its page."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from console.accounts import saved_views
from console.accounts.refusals import Refused
from console.accounts.saved_views import view_query
from console.ui.live.page import require_login, user_of
from console.ui.paging import text


@require_POST
@require_login
def save_view(request: HttpRequest) -> HttpResponse:
    """Saves the filters in the form under a name. A view of that name gets the new filters."""
    query = request.POST.get("query", "")
    try:
        view, _ = saved_views.save_view(user_of(request), text(request.POST.get("name")), query)
        messages.success(request, f"The view {view.name} was saved.")
    except Refused as refused:
        messages.error(request, refused.detail)
    return redirect(_address(query))


@require_POST
@require_login
def delete_view(request: HttpRequest, pk: int) -> HttpResponse:
    view = get_object_or_404(saved_views.views_of(user_of(request)), pk=pk)
    view.delete()
    messages.success(request, f"The view {view.name} was deleted.")
    return redirect(_address(request.POST.get("query", "")))


def _address(query: str) -> str:
    filters = view_query(query)
    return f"{reverse('ui:jobs')}?{filters}" if filters else reverse("ui:jobs")
