"""Saved views of the list of jobs: a user's names for filters."""

from typing import Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from console.accounts.models import SavedView
from console.ui.jobfilters import view_query
from console.ui.paging import text
from console.ui.views.page import require_login, user_of

MAX_VIEWS: Final = 30  #: of a user


@require_POST
@require_login
def save_view(request: HttpRequest) -> HttpResponse:
    """Saves the filters in the form under a name. A view of that name gets the new filters."""
    user, name = user_of(request), text(request.POST.get("name"))[: SavedView.MAX_NAME]
    query = view_query(request.POST.get("query", ""))[: SavedView.MAX_QUERY]
    others = SavedView.objects.filter(user=user).exclude(name=name)
    if not name:
        messages.error(request, "A view needs a name.")
    elif others.count() >= MAX_VIEWS:
        messages.error(request, f"There are {MAX_VIEWS} views already: delete one first.")
    else:
        SavedView.objects.update_or_create(user=user, name=name, defaults={"query": query})
        messages.success(request, f"The view {name} was saved.")
    return redirect(_address(query))


@require_POST
@require_login
def delete_view(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(SavedView, pk=pk, user=user_of(request))
    found.delete()
    messages.success(request, f"The view {found.name} was deleted.")
    return redirect(_address(view_query(request.POST.get("query", ""))))


def _address(query: str) -> str:
    return f"{reverse('ui:jobs')}?{query}" if query else reverse("ui:jobs")
