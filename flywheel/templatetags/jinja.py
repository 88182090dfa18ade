"""Jinja2 for what a page has hundreds of: `templates/jinja`. What it costs is measured in docs/design/lists.md.

The filters are those of `flywheel.py` beside it. Whatever is written is made visible and escaped, with or without a
filter: nobody can forget it. `|e` escapes without making visible, where a script needs the very text.
"""

from typing import Any

from jinja2 import Environment, StrictUndefined

from flywheel.templatetags.flywheel import mark_outcome, register
from flywheel.templatetags.texts import safe_text


def environment(**options: Any) -> Environment:
    """As `settings.TEMPLATES` names it."""
    own = {"autoescape": True, "undefined": StrictUndefined, "finalize": _shown}
    made = Environment(**options | own, trim_blocks=True, lstrip_blocks=True)  # noqa: S701 it is on
    made.filters |= register.filters
    made.globals["mark_outcome"] = mark_outcome
    return made


def _shown(value: Any) -> Any:
    return value if hasattr(value, "__html__") else safe_text(value)
