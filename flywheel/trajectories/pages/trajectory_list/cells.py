"""The table of the list of trajectories, put together of the blocks of `templates/jinja/trajectories/cells.html`.

A page has six hundred cells. A row is compiled as one template of the blocks of the columns that are shown: calling a
block for each cell took twice as long, a macro four times.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any
from urllib.parse import quote

from django.template import engines
from django.urls import reverse
from django.utils.safestring import SafeString

from flywheel.accounts.models import Project
from flywheel.trajectories.annotations import project_buckets
from flywheel.trajectories.formats.semantics import sent_attributes
from flywheel.trajectories.search import list_columns

TEMPLATE = "trajectories/cells.html"
_SEGMENT = "~:@!$&'()*+,;="
"""What stands in an address as it is."""


def table(project: Project, items: Iterable[Any], shown: Sequence[str]) -> dict[str, SafeString]:
    """`heads` and `rows` of the table with these columns, and `boxes` to choose others. Items as `list_columns.read`
    answers them."""
    jinja: Any = engines["jinja2"].env  # type: ignore[attr-defined]
    template = jinja.get_template(TEMPLATE)
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

    index = reverse("trajectories:index", args=[project.slug])
    for item in items:
        item.address = f"{index}{quote(item.trace_id, safe=_SEGMENT)}/"
    rows = _rows(jinja, tuple(_block(jinja, column) for column in columns))
    return {
        "heads": written("_heads"),
        "rows": SafeString(rows.render(context.get_all(), items=items)),
        "boxes": written("_boxes"),
    }


@lru_cache(maxsize=64)
def _rows(jinja: Any, names: tuple[str, ...]) -> Any:
    """The template of all rows, whose cells are these blocks in turn."""
    sources = _sources(jinja)
    cells = (f"{{% set column = shown[{place}] %}}\n{sources[name]}" for place, name in enumerate(names))
    row = sources["_row"].replace("{{ cells }}\n", "".join(cells))
    return jinja.from_string(f"{{% for t in items %}}\n{row}{{% endfor %}}\n")


@lru_cache(maxsize=2)
def _sources(jinja: Any) -> dict[str, str]:
    """The template's blocks, each as it is written."""
    source, _, _ = jinja.loader.get_source(jinja, TEMPLATE)
    return dict(re.findall(r"{% block (\w+) %}\n(.*?){% endblock %}", source, re.DOTALL))


def _block(jinja: Any, column: list_columns.Column) -> str:
    if column.key.startswith(list_columns.ATTRIBUTE):
        return "_attribute"
    own = column.key if column.key in _sources(jinja) else ""
    return own or ("_number" if column.is_number else "_text")
