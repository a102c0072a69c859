"""The address of a page with other query parameters."""

from typing import Any
from urllib.parse import urlencode

from django.template import Context


def here(context: Context, **changes: Any) -> str:
    """The address of this page with some query parameters changed; None removes a parameter."""
    query = {name: values for name, values in context["request"].GET.lists() if name not in changes}
    changed = {name: str(value) for name, value in changes.items() if value not in (None, "")}
    encoded = urlencode(query | changed, doseq=True)
    return f"?{encoded}" if encoded else context["request"].path
