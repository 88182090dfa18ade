"""The table of the list of trajectories, put together of the blocks of `templates/jinja/trajectories/cells.html`.

A page has six hundred cells. A block writes straight into the page; with a macro for each it took nearly twice as long.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any
from urllib.parse import quote

from django.template import engines
from django.urls import reverse
from django.utils.safestring import SafeString

from flywheel.accounts.models import Project
from flywheel.trajectories.annotations import project_buckets
from flywheel.trajectories.search.list_columns import COLUMNS

_SEGMENT = "~:@!$&'()*+,;="
"""What stands in an address as it is."""


def table(project: Project, items: Iterable[Any], shown: Sequence[str]) -> dict[str, SafeString]:
    """`heads` and `rows` of the table with these columns, and `boxes` to choose others. Items as `list_columns.read`
    answers them."""
    template: Any = engines["jinja2"].env.get_template("trajectories/cells.html")  # type: ignore[attr-defined]
    columns = [COLUMNS[key] for key in shown]
    context = template.new_context(
        {
            "project": project,
            "known_buckets": project_buckets.every(project),
            "url": cache(lambda name, *args: reverse(name, args=args)),
            "columns": COLUMNS.values(),
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
    kinds = {True: template.blocks["_number"], False: template.blocks["_text"]}
    cells = [(column, template.blocks.get(column.key, kinds[column.is_number])) for column in columns]
    return {"heads": written("_heads"), "rows": SafeString("".join(map(row, items))), "boxes": written("_boxes")}
