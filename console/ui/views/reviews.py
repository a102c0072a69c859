"""The review desk: the checkpoints of all jobs that need a look."""

from typing import Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods

from console.accounts.models import User
from console.accounts.rights import operate_refusal
from console.checkpoints.models import Checkpoint, Concern
from console.checkpoints.review_queue import ReviewFilter, review_queue, with_longest_later
from console.operations.models import OperationKind
from console.ui.paging import by_id, text, whole_number
from console.ui.revision import revision, revision_of
from console.ui.views.actions import request_or_explain
from console.ui.views.page import PageContent, page_or_blocks, require_login, user_of

ROWS_PER_PAGE: Final = 50
MAX_USERS: Final = 200


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def desk(request: HttpRequest) -> HttpResponse:
    """GET shows the queue; POST assigns a checkpoint of it to the user and shows the same page again."""
    if request.method == "POST":
        found = get_object_or_404(
            Checkpoint.objects.select_related("job"), pk=whole_number(request.POST.get("checkpoint")) or 0
        )
        params = {"checkpoint": found.pk, "user": user_of(request).get_username()}
        request_or_explain(request, found.job, OperationKind.ASSIGN, params)
        return redirect(request.get_full_path())
    given = {name: text(request.GET.get(name)) for name in ReviewFilter.base_filters}
    filtered = ReviewFilter(given, queryset=review_queue().select_related("job", "assignee").defer("operators"))
    is_valid, before = filtered.is_valid(), whole_number(request.GET.get("before"))

    def load_content() -> PageContent:
        context = {
            "section": "reviews",
            "given": given,
            "is_filtered": any(given.values()),
            "is_valid": is_valid,
            "found": by_id(with_longest_later(filtered.qs), before, ROWS_PER_PAGE) if is_valid else None,
            "concerns": [concern.value for concern in Concern],
            "users": user_names(),
            "refusal": operate_refusal(request.user),
        }
        return PageContent(context, settled=not is_valid)

    def load_revision() -> str:
        if not is_valid:
            return revision_of(request)
        rows = filtered.qs.filter(pk__lt=before) if before else filtered.qs
        return revision(request, [(rows, ROWS_PER_PAGE + 1)])

    return page_or_blocks(request, "reviews/desk.html", "reviews/_live.html", load_content, load_revision)


def user_names() -> list[str]:
    """The active users, to whom a review can be assigned."""
    names = User.objects.filter(is_active=True).order_by("username").values_list("username", flat=True)
    return list(names[:MAX_USERS])
