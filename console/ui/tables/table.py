"""The declaration of a table: header, cell, narrow label, order and CSV field of a column stand together.

`{% table %}` renders every table by one template. Views read the orders and the CSV file from the same declaration.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_DEFAULT_CELL: Final = '{% if value == "" %}–{% else %}{{ value|default_if_none:"–" }}{% endif %}'


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the page, of the CSV file, or of both. A column without a label is in the file only.

    `key`: the name of the column, and the path of its value unless `value` is another path or a function of the row.
    `cell`: a filter of the value such as `duration`, a part of the template `Table.cells` such as `#state`, or the
    source of a template, which has the row and its `value`. Without a cell the value is shown, an empty one as a dash.
    `sort`: the orders of the header's link, the first click first. `order`: the value that they sort the rows by.
    `csv`: the name of the field in the file. `number`: numbers are aligned to the right. `label` and `style`, the
    classes of the cells, may be sources of templates. `header`: source of the header if it is more than the label.
    `only`: the variable of the page that shows the column; after `not `, the variable that hides it.
    `is_head`: the cell names its row. Without such a column, the first one does.
    """

    key: str
    label: str = ""
    cell: str = ""
    value: str | Callable[[Any], Any] = ""
    sort: tuple[str, ...] = ()
    csv: str = ""
    number: bool = False
    header: str = ""
    order: Callable[[Any], Any] | None = None
    style: str = ""
    only: str = ""
    is_head: bool = False

    def is_shown(self, page: Any) -> bool:
        """Whether a page with these variables shows the column. `page`: a context, or a mapping."""
        name, _, path = self.only.removeprefix("not ").partition(".")
        return bool(self.label) and (not name or bool(_at(page.get(name), path)) is not self.only.startswith("not "))

    @property
    def source(self) -> str:
        """The source of the cell, or its part of `Table.cells`."""
        if "{" in self.cell or self.cell.startswith("#"):
            return self.cell
        return f"{{{{ value|{self.cell} }}}}" if self.cell else _DEFAULT_CELL

    @property
    def path(self) -> str:
        return self.value if isinstance(self.value, str) and self.value else self.key

    def value_of(self, row: Any) -> Any:
        """The value in a row; None if a part of its path is absent."""
        return self.value(row) if callable(self.value) else _at(row, self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns, and the texts around the rows, which are sources of templates or parts of `cells`, as in a column.

    `row`: the name of a row in cells; several names unpack a tuple. `region`: label of the part of the page that
    scrolls; "": the page has that part. `style`: "stacked" shows each row of a narrow page as a block. `foot`: a note
    below the rows. `row_id`: id of the row. `after`: follows each row. `empty`: stands instead of a table without rows.
    """

    name: str
    row: str
    cells: str = ""
    caption: str
    columns: tuple[Column, ...]
    region: str = ""
    style: str = ""
    foot: str = ""
    row_id: str = ""
    after: str = ""
    empty: str = ""

    def order_of(self, sort: str) -> Callable[[Any], Any] | None:
        """The `order` of the column that the rows stand by in the order `sort`, such as `-lag`."""
        return next((column.order for column in self.columns if sort in column.sort), None)

    @property
    def fields(self) -> list[str]:
        """The names of the fields in the file."""
        return [column.csv for column in self._in_file()]

    @property
    def field_paths(self) -> list[str]:
        """The paths of these fields in a queryset."""
        return [column.path.replace(".", "__") for column in self._in_file()]

    def csv_rows(self, rows: Iterable[Any]) -> Iterator[list[Any]]:
        columns = self._in_file()
        return ([column.value_of(row) for column in columns] for row in rows)

    def _in_file(self) -> list[Column]:
        return [column for column in self.columns if column.csv]


def _at(place: Any, path: str) -> Any:
    for part in filter(None, path.split(".")):
        if part.isdecimal():
            place = place[int(part)]
        else:
            place = place.get(part) if isinstance(place, Mapping) else getattr(place, part, None)
    return place


def descending(key: str) -> tuple[str, str]:
    """The orders of a column whose first click shows the highest values first."""
    return f"-{key}", key
