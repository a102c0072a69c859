"""HTML of a declared table. `{% partialdef %}` names a part of a template, as Django 6 does."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from django.template import Context, Engine, TemplateDoesNotExist
from django.template.base import Node, NodeList, Parser, Token
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from console.ui.addresses import here
from console.ui.tables.declared import TABLES
from console.ui.tables.table import Column, Table


class PartialNode(Node):
    """A part of a template that other templates render: where it stands, it renders to nothing."""

    def __init__(self, name: str, nodelist: NodeList) -> None:
        self.name, self.nodelist = name, nodelist

    def render(self, context: Context) -> SafeString:
        return SafeString("")


def partialdef(parser: Parser, token: Token) -> PartialNode:
    """{% partialdef state %} … {% endpartialdef %}"""
    _, name = token.split_contents()
    nodelist = parser.parse(("endpartialdef",))
    parser.delete_first_token()
    return PartialNode(name, nodelist)


def table(context: Context, name: str, rows: Sequence[Any], **variables: Any) -> SafeString:
    """{% table "jobs" lines %}: the rows, or the text for no rows. `variables`: for texts and cells."""
    with context.push(**variables):
        return _table(context, TABLES[name], rows)


def _table(context: Context, declared: Table, rows: Sequence[Any]) -> SafeString:
    if not rows:
        return _render(declared, declared.empty, context)
    columns = [column for column in declared.columns if column.is_shown(context)]
    values = {
        "table": declared,
        "caption": _render(declared, declared.caption, context),
        "region": _render(declared, declared.region, context),
        "foot": _render(declared, declared.foot, context),
        "heads": [_head(declared, column, context) for column in columns],
        "rows": list(_rows(declared, columns, rows, context)),
    }
    with context.push(**values):
        return Engine.get_default().get_template("weir/_table.html").render(context)


def _head(declared: Table, column: Column, context: Context) -> SafeString:
    """A header; its link leads to the next order of the rows by this column."""
    text, current = _render(declared, column.header or column.label, context), context.get("sort")
    attributes = ' class="number"' if column.number else ""
    is_current = bool(column.sort) and current in column.sort
    if is_current:
        direction = "ascending" if current and not current.startswith("-") else "descending"
        attributes += f' aria-sort="{direction}"'
    orders = [order for order in column.sort if not is_current or order != current]
    if orders:
        key = column.sort[0].removeprefix("-") or column.key
        text = format_html('<a id="sort-{}" href="{}">{}</a>', key, here(context, sort=orders[0], after=None), text)
    return mark_safe(f'<th scope="col"{attributes}>{text}</th>')  # noqa: S308


def _rows(declared: Table, columns: Sequence[Column], rows: Sequence[Any], context: Context) -> Iterator[SafeString]:
    names = declared.row.split(", ")
    heads = [column for column in columns if column.is_head] or columns[:1]
    for number, row in enumerate(rows, 1):
        values = dict(zip(names, row, strict=True)) if len(names) > 1 else {declared.row: row}
        with context.push(**values, row_number=number):
            cells = [_cell(declared, column, values[names[0]], context, is_head=column in heads) for column in columns]
            identity = f' id="{_render(declared, declared.row_id, context)}"' if declared.row_id else ""
            after = _render(declared, declared.after, context)
            yield mark_safe(f"<tr{identity}>{''.join(cells)}</tr>{after}")  # noqa: S308


def _cell(declared: Table, column: Column, row: Any, context: Context, *, is_head: bool) -> str:
    classes = f"{'number' if column.number else ''} {_render(declared, column.style, context)}".strip()
    is_labelled = declared.style == "stacked" and not is_head
    attributes = f' data-label="{_render(declared, column.label, context)}"' if is_labelled else ""
    attributes += f' class="{classes}"' if classes else ""
    with context.push(value=column.value_of(row)):
        html = _render(declared, column.source, context)
    return f'<th scope="row"{attributes}>{html}</th>' if is_head else f"<td{attributes}>{html}</td>"


def _render(declared: Table, source: str, context: Context) -> SafeString:
    if "{" not in source and not source.startswith("#"):
        return mark_safe(source)  # noqa: S308
    return mark_safe(_compiled(declared.cells, source).render(context).strip())  # noqa: S308


@cache
def _compiled(cells: str, source: str) -> NodeList:
    """The nodes of a source, or of a part of the template `cells`."""
    engine = Engine.get_default()
    if not source.startswith("#"):
        return engine.from_string(f"{{% load weir %}}{source}").nodelist
    parts: Sequence[Any] = engine.get_template(cells).nodelist.get_nodes_by_type(PartialNode)
    nodes: NodeList | None = next((part.nodelist for part in parts if part.name == source[1:]), None)
    if nodes is None:
        raise TemplateDoesNotExist(f"{cells}{source}")
    return nodes
