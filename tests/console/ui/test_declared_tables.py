"""The declarations of the tables: what a column declares holds for its page, its file and its order."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from django.template import Context, TemplateDoesNotExist
from django.test import Client, RequestFactory
from django.utils import timezone

from console.pages.selectors import find_jobs
from console.ui.tables import html
from console.ui.tables.declared import TABLES
from console.ui.tables.jobs import JOBS
from console.ui.tables.table import Column, Table
from tests.console.ui import rows

EVERY_TABLE = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)


def sources(table: Table) -> Iterator[str]:
    yield from (table.caption, table.region, table.foot, table.row_id, table.after, table.empty)
    for column in table.columns:
        yield from (column.label, column.header, column.style)
        if column.label:
            yield column.source


@EVERY_TABLE
def test_each_text_and_cell_of_a_table_compiles(table: Table) -> None:
    for source in filter(lambda source: "{" in source or source.startswith("#"), sources(table)):
        html._compiled(table.cells, source)


@EVERY_TABLE
def test_the_columns_of_a_table_are_told_apart(table: Table) -> None:
    for names in ([column.key for column in table.columns], table.fields):
        assert len(names) == len(set(names)), names
    orders = [order for column in table.columns for order in column.sort]
    assert len(orders) == len(set(orders)), orders


@EVERY_TABLE
def test_an_order_has_the_name_of_its_column(table: Table) -> None:
    """The order is an annotation with that name, and its link an id."""
    for column in table.columns:
        if column.order:
            assert {order.removeprefix("-") for order in column.sort} == {column.key}


def test_a_cell_that_is_nowhere_is_a_failure() -> None:
    with pytest.raises(TemplateDoesNotExist, match="#nowhere"):
        html._compiled("jobs/_cells.html", "#nowhere")


@pytest.mark.django_db
@pytest.mark.parametrize("column", [column for column in JOBS.columns if column.order], ids=lambda column: column.key)
def test_jobs_have_a_value_for_each_order(column: Column) -> None:
    rows.job("never ran")
    assert column.order is not None
    assert find_jobs().annotate(**{column.key: column.order(timezone.now())}).exclude(**{column.key: None}).count() == 1


class Cells(HTMLParser):
    """The texts of a table: headers, and cells with their narrow labels."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.heads: list[str] = []
        self.cells: list[tuple[str | None, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        values = dict(attrs)
        if tag == "th" and values["scope"] == "col":
            self.heads.append("")
        elif tag in ("th", "td"):
            self.cells.append((values.get("data-label"), values.get("class", "")))

    def handle_data(self, data: str) -> None:
        if self.heads and not self.cells:
            self.heads[-1] += data.strip()


PLAIN = Table(
    name="plain",
    row="row",
    caption="Rows of {{ job }}",
    style="stacked",
    empty="{{ job }} has none.",
    columns=(
        Column("number", "Number", number=True),
        Column("size", "Size", "size", number=True, sort=("-size", "size")),
        Column("hidden", "Hidden", only="is_long"),
        Column("text", "Text", value=lambda row: row["words"].upper(), csv="text"),
        Column("deep", value="a.b", csv="deep"),
    ),
)


def render(monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, Any]], query: str = "", **page: Any) -> str:
    monkeypatch.setitem(TABLES, "plain", PLAIN)
    context = Context({"request": RequestFactory().get(f"/rows/{query}"), "job": "<a>", **page})
    return html.table(context, "plain", lines)


def test_header_label_and_cell_come_from_one_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    text = render(monkeypatch, [{"number": 7, "size": 2048, "words": "<b>", "hidden": None}])
    cells = Cells(text)
    assert cells.heads == ["Number", "Size", "Text"]
    assert cells.cells == [(None, "number"), ("Size", "number"), ("Text", "")]
    assert "Rows of &lt;a&gt;" in text
    assert "&lt;B&gt;" in text
    long = Cells(render(monkeypatch, [{"number": 7, "size": 1, "words": "", "hidden": None}], is_long=True))
    assert long.heads == ["Number", "Size", "Hidden", "Text"]


def test_a_table_without_rows_is_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert render(monkeypatch, []) == "&lt;a&gt; has none."


@pytest.mark.parametrize(
    ("sort", "direction", "link"),
    [("", None, "?sort=-size"), ("-size", "descending", "?sort=size"), ("size", "ascending", "?sort=-size")],
)
def test_a_header_leads_to_its_next_order(
    monkeypatch: pytest.MonkeyPatch, sort: str, direction: str | None, link: str
) -> None:
    text = render(monkeypatch, [{"number": 1, "size": 1, "words": ""}], "?after=9", sort=sort)
    assert re.findall(r'<a id="sort-(\w+)" href="([^"]*)"', text) == [("size", link)]
    assert re.findall(r'aria-sort="(\w+)"', text) == ([direction] if direction else [])


def test_the_file_has_the_fields_of_the_columns() -> None:
    assert PLAIN.fields == ["text", "deep"]
    assert list(PLAIN.csv_rows([{"words": "b", "a": {"b": 3}}, {"words": "c", "a": None}])) == [["B", 3], ["C", None]]


@pytest.mark.django_db
def test_the_list_of_jobs_links_the_orders_that_it_declares(at_console: Client) -> None:
    rows.run(rows.job())
    links = re.findall(r'<a id="sort-([\w-]+)"', at_console.get("/jobs/").content.decode())
    assert links == [column.key for column in JOBS.columns if column.sort and "" not in column.sort]
