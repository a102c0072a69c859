"""The review desk: the checkpoints of all jobs that need a look."""

from typing import Final

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect

from console.accounts.models import User
from console.accounts.rights import operate_refusal
from console.checkpoints.models import Checkpoint, Concern
from console.checkpoints.review_queue import ReviewFilter, review_queue, with_longest_later
from console.operations.models import OperationKind
from console.ui.live.page import LivePage, PageContent, user_of
from console.ui.live.revision import revision, revision_of
from console.ui.paging import by_id, text, whole_number
from console.ui.views.actions import request_or_explain

ROWS_PER_PAGE: Final = 50
MAX_USERS: Final = 200


class ReviewDesk(LivePage):
    """GET shows the queue; POST assigns a checkpoint of it to the user and shows the same page again."""

    template, blocks = "reviews/desk.html", "reviews/_live.html"

    def open(self) -> HttpResponse | None:
        if self.request.method == "POST":
            checkpoint = get_object_or_404(
                Checkpoint.objects.select_related("job"), pk=whole_number(self.request.POST.get("checkpoint")) or 0
            )
            params = {"checkpoint": checkpoint.pk, "user": user_of(self.request).get_username()}
            request_or_explain(self.request, checkpoint.job, OperationKind.ASSIGN, params)
            return redirect(self.request.get_full_path())
        self.values = {name: text(self.request.GET.get(name)) for name in ReviewFilter.base_filters}
        self.queue = ReviewFilter(
            self.values, queryset=review_queue().select_related("job", "assignee").defer("operators")
        )
        self.is_valid, self.before = self.queue.is_valid(), whole_number(self.request.GET.get("before"))
        return None

    def content(self) -> PageContent:
        return {
            "section": "reviews",
            "given": self.values,
            "is_filtered": any(self.values.values()),
            "is_valid": self.is_valid,
            "found": by_id(with_longest_later(self.queue.qs), self.before, ROWS_PER_PAGE) if self.is_valid else None,
            "concerns": [concern.value for concern in Concern],
            "users": user_names(),
            "refusal": operate_refusal(self.request.user),
        }

    def rows(self) -> str:
        if not self.is_valid:
            return revision_of(self.request)
        rows = self.queue.qs.filter(pk__lt=self.before) if self.before else self.queue.qs
        return revision(self.request, [(rows, ROWS_PER_PAGE + 1)])


desk = ReviewDesk.view(posts=True)


def user_names() -> list[str]:
    """The active users, to whom a review can be assigned."""
    names = User.objects.filter(is_active=True).order_by("username").values_list("username", flat=True)
    return list(names[:MAX_USERS])
