"""Small pictures. SVG attributes instead of inline styles, which the Content-Security-Policy forbids."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from flywheel.templatetags.numbers import NOTHING
from flywheel.templatetags.texts import plain

register = template.Library()


@register.inclusion_tag("_chart.html")
def chart(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A chart of static/charts.js. The data travels as text, because htmx removes every <script> from what it swaps."""
    return {"spec": spec, "data": json.dumps(_finite(plain(spec)), default=str, separators=(",", ":"))}


@register.simple_tag
def sparkline(values: Sequence[float | None], label: str = "", tone: str = "") -> SafeString:
    """A trend the size of a word; label is what a screen reader hears. Gaps stay gaps."""
    known = [value for value in values if value is not None]
    if not known:
        return format_html('<span class="none" title="no data">{}</span>', NOTHING)
    low, high, width, height = min(known), max(known), 72, 20
    spread = (high - low) or 1
    step = (width - 4) / max(1, len(values) - 1)
    runs: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            runs.append([])
            continue
        y = height / 2 if high == low else height - 3 - (value - low) / spread * (height - 6)
        runs[-1].append(f"{2 + index * step:.1f},{y:.1f}")
    lines = format_html_join(
        "", '<polyline points="{}" />', ((" ".join(run if len(run) > 1 else run * 2),) for run in runs if run)
    )
    return format_html(
        '<svg class="spark {}" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>',
        tone,
        width,
        height,
        width,
        height,
        label or f"trend from {known[0]:g} to {known[-1]:g}",
        lines,
    )


@register.simple_tag
def bar(value: float | None, maximum: float = 1, tone: str = "", label: str = "") -> SafeString:
    """A share as a bar, as wide as its cell."""
    share = 0.0 if value is None or not maximum else max(0.0, min(1.0, value / maximum))
    return span_bar(0, share, 1, tone, label)


@register.simple_tag
def span_bar(start: float, length: float, total: float, tone: str = "", label: str = "") -> SafeString:
    """One row of a waterfall: a bar from `start`, `length` long, where the whole track is `total`."""
    total = total or 1
    x = max(0.0, min(1.0, start / total))
    width = max(0.003 if length else 0.0, min(1.0 - x, length / total))
    return format_html(
        '<svg class="bar {}" role="img" aria-label="{}"><rect class="track" width="100%" height="100%" rx="2" />'
        '<rect class="fill" x="{}%" width="{}%" height="100%" rx="2" /></svg>',
        tone,
        label or f"{width * 100:.0f}%",
        f"{x * 100:.2f}",
        f"{width * 100:.2f}",
    )


def _finite(value: Any) -> Any:
    """NaN and infinity are no JSON; a gap in the line says the same."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
