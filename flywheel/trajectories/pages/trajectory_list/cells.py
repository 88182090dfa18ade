"""The table of the list of trajectories, put together of the blocks of `templates/jinja/trajectories/cells.html`.

A page has six hundred cells. A block writes straight into the page; with a macro for each it took nearly twice as long.
"""

from collections.abc import Container, Iterable, Sequence
from functools import cache
from typing import Any
from urllib.parse import quote

from django.template import engines
from django.urls import reverse
from django.utils.safestring import SafeString

from flywheel.accounts.models import Project
from flywheel.trajectories.annotations import project_buckets
from flywheel.trajectories.formats.semantics import sent_attributes
from flywheel.trajectories.search import list_columns

_SEGMENT = "~:@!$&'()*+,;="
"""What stands in an address as it is."""


def table(project: Project, items: Iterable[Any], shown: Sequence[str]) -> dict[str, SafeString]:
    """`heads` and `rows` of the table with these columns, and `boxes` to choose others. Items as `list_columns.read`
    answers them."""
    template: Any = engines["jinja2"].env.get_template("trajectories/cells.html")  # type: ignore[attr-defined]
    columns, items = [list_columns.column(key) for key in shown], list(items)
    context = template.new_context(
        {
            "project": project,
            "known_buckets": project_buckets.every(project),
            "url": cache(lambda name, *args: reverse(name, args=args)),
            "columns": list_columns.offered(items, shown),
            "values_of": sent_attributes.values_of,
            "shown": columns,
        }
    )

    def written(block: str) -> SafeString:
        return SafeString("".join(template.blocks[block](context)))  # it has escaped what it was given

    def row(item: Any) -> SafeString:
        item.address = f"{index}{quote(item.trace_id, safe=_SEGMENT)}/"
        context.vars["t"] = item
        parts: list[str] = []
        for column, cell in cells:
            context.vars["column"] = column
            parts += cell(context)
        context.vars["cells"] = SafeString("".join(parts))
        return written("_row")

    index = reverse("trajectories:index", args=[project.slug])
    cells = [(column, template.blocks[_block(column, template.blocks)]) for column in columns]
    return {"heads": written("_heads"), "rows": SafeString("".join(map(row, items))), "boxes": written("_boxes")}


def _block(column: list_columns.Column, blocks: Container[str]) -> str:
    if column.key.startswith(list_columns.ATTRIBUTE):
        return "_attribute"
    own = column.key if column.key in blocks else ""
    return own or ("_number" if column.is_number else "_text")
