"""Saved views of the list of jobs: a user's names for filters. A view belongs to its user."""

from typing import Final

from django.db.models import QuerySet
from django.http import QueryDict

from console.accounts.models import SavedView, User
from console.accounts.refusals import Conflict, InvalidField, Refused

MAX_VIEWS: Final = 30  #: of a user
_KEYS: Final = ("q", "state", "health", "tag", "owner", "archived", "sort")  #: of an address that a view keeps


def views_of(user: User) -> QuerySet[SavedView]:
    """The views of a user, by name."""
    return SavedView.objects.filter(user=user)


def save_view(user: User, name: str, query: str) -> tuple[SavedView, bool]:
    """Saves the filters in a query string under a name. A view of that name gets the new filters.

    Returns:
        The view, and whether it is new.

    Raises:
        Refused: the name is empty, name or filters are too long, or the user has `MAX_VIEWS` other views.
    """
    filters = view_query(query)
    if not name:
        raise Refused("invalid-field", "A view needs a name.", "name")
    for field, value, most in (("name", name, SavedView.MAX_NAME), ("query", filters, SavedView.MAX_QUERY)):
        if len(value) > most:
            raise InvalidField(field, f"must have {most} characters at most")
    if views_of(user).exclude(name=name).count() >= MAX_VIEWS:
        raise Conflict("too-many-views", f"There are {MAX_VIEWS} views already: delete one first.")
    return SavedView.objects.update_or_create(user=user, name=name, defaults={"query": filters})


def view_query(query: str) -> str:
    """The part of a query string that a saved view keeps, in a fixed order: no page, no unknown parameter."""
    parameters, filters = QueryDict(query), QueryDict(mutable=True)
    for name in _KEYS:
        if value := parameters.get(name, "").replace("\0", "").strip():
            filters[name] = value
    return filters.urlencode()
