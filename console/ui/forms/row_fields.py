"""Form fields of lists and maps of scalars: an input per element, with blank rows to add elements.

Without scripts, emptied rows are left out and blank rows add elements. `rows.js` adds and removes rows in the browser.
"""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

BLANK_ROWS: Final = 3  #: after the elements
MAX_ROWS: Final = 200  #: of all values of a form; Django refuses a form with more than 1,000 inputs
_NAME: Final = "-name"  #: suffix of the inputs with the names of a map


class RowsWidget(forms.Widget):
    """Inputs with the same name, in rows. `has_names`: each row has the name of an entry, too."""

    def __init__(self, element: forms.Field, *, has_names: bool) -> None:
        super().__init__()
        self.element, self.has_names = element, has_names
        self.title = ""  #: label of the field, for the label of each input

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Any:
        rows = _texts(data, name)
        return list(zip_longest(_texts(data, name + _NAME), rows, fillvalue="")) if self.has_names else rows

    def id_for_label(self, id_: str) -> str:
        return f"{id_}_1" if id_ else ""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        blank = ("", "") if self.has_names else ""
        values = [*(value or ()), *[blank] * BLANK_ROWS]
        rows = [(self._row(name, at, row, attrs or {}),) for at, row in enumerate(values, 1)]
        return format_html('<div class="rows" data-rows>{}</div>', format_html_join("\n", "{}", rows))

    def _row(self, name: str, at: int, row: Any, attrs: Mapping[str, Any]) -> SafeString:
        id_ = f"{attrs.get('id', name)}_{at}"
        shared = {key: text for key, text in attrs.items() if key not in ("id", "required")}
        key, inner = row if self.has_names else (None, row)
        value = {
            **shared,
            "id": f"{id_}_value" if self.has_names else id_,
            "aria-label": f"{self.title}, value of row {at}",
        }
        value_input = self.element.widget.render(name, self.element.prepare_value(inner), value)
        if not self.has_names:
            return format_html('<div class="row" data-row>{}</div>', value_input)
        label = {**shared, "id": id_, "aria-label": f"{self.title}, name of row {at}"}
        name_input = forms.TextInput().render(name + _NAME, key, label)
        return format_html('<div class="row" data-row>{}{}</div>', name_input, value_input)


class RowsField(forms.Field):
    """A list, or with `has_names` a map, of the values of `element`. `keeps_empty`: no rows are an empty value."""

    def __init__(self, element: forms.Field, *, has_names: bool, required: bool, keeps_empty: bool) -> None:
        super().__init__(required=required, widget=RowsWidget(element, has_names=has_names))
        self.element, self.has_names, self.keeps_empty = element, has_names, keeps_empty or required

    def prepare_value(self, value: Any) -> Any:
        return list(value.items()) if isinstance(value, dict) else value

    def clean(self, value: Any) -> Any:
        """The JSON value; None if no row is filled. Raises ValidationError, which names each row at fault."""
        if not value:  # the request has no rows at all, although a page always sends blank rows
            return super().clean(None)
        pairs = value if self.has_names else [("", text) for text in value]
        rows = [(at, name, text) for at, (name, text) in enumerate(pairs, 1) if name or text]
        entries: list[tuple[str, Any]] = []
        errors: list[str] = []
        for at, name, text in rows:
            try:
                if self.has_names:
                    _require_name(name, [key for key, _ in entries])
                entries.append((name, self.element.clean(text)))
            except ValidationError as error:
                errors += [f"Row {at}: {message}" for message in error.messages]
        if errors:
            raise ValidationError(errors)
        if not entries and not self.keeps_empty:
            return None
        return dict(entries) if self.has_names else [inner for _, inner in entries]

    def can_show(self, value: Any, most: int = MAX_ROWS) -> bool:
        """Whether at most `most` rows keep `value` as it is.

        Blank rows stand for empty names and elements, and no rows for an omitted value. Browsers drop line breaks.
        """
        if not isinstance(value, dict if self.has_names else list) or len(value) > most or "" in value:
            return False
        if not value:
            return self.keeps_empty or value == self.initial
        inner = value.values() if isinstance(value, dict) else value
        has_scalars = all(isinstance(each, str | int | float) for each in inner)
        return has_scalars and set("".join(map(str, (*value, *inner)))).isdisjoint("\r\n")


def _texts(data: Any, name: str) -> list[str]:
    """The texts of the inputs with this name; a plain mapping has them as a list."""
    texts = data.getlist(name) if hasattr(data, "getlist") else data.get(name, [])
    return [str(text) for text in texts]


def _require_name(name: str, names: list[str]) -> None:
    if not name:
        raise ValidationError("a value needs a name.")
    if name in names:
        raise ValidationError(f"the name {name} is used twice.")
