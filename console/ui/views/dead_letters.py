"""The page of the dead letters of a job."""

from typing import Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from console.accounts.refusals import Refused
from console.jobs.models import Job
from console.pages.dead_letters import DeadLetters, dead_letters
from console.ui.live.page import page, require_login
from console.ui.paging import text, whole_number

LETTERS_PER_PAGE: Final = 20


@require_safe
@require_login
def dead_letter_list(request: HttpRequest, pk: int) -> HttpResponse:
    """`operator`, `error` and `offset` in the address choose the dead letters."""
    job = get_object_or_404(Job, pk=pk)
    operator, error = text(request.GET.get("operator")), text(request.GET.get("error"))
    offset = min(whole_number(request.GET.get("offset")) or 0, 10**6)
    try:
        listing = dead_letters(job, operator, error, offset, LETTERS_PER_PAGE)
    except Refused as refused:
        listing = DeadLetters(fault=refused.detail)
    end = offset + len(listing.letters)
    context = {
        "job": job,
        "listing": listing,
        "operator": operator,
        "error": error,
        "first": offset + 1,
        "end": end,
        "newer": max(0, offset - LETTERS_PER_PAGE) if offset else None,
        "older": end if end < listing.total else None,
    }
    return page(request, "jobs/dead_letters.html", context)
