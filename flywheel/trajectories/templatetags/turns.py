"""`{% turns %}`: the turns of a conversation, as `_turns.html` is asked for them."""

from typing import Any

from django import template
from django.template.context import Context
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils.safestring import SafeString

from flywheel.trajectories.detail.turns import TEXT_SHOWN

register = template.Library()


@register.simple_tag(takes_context=True, name="turns")
def write(context: Context) -> SafeString:
    turns, selectable = context.get("turns") or [], context.get("selectable")
    trace_id = turns[0].trace_id if turns else ""

    def address(name: str) -> str:
        """Empty where no trajectory is stored."""
        try:
            return reverse(f"trajectories:{name}", args=[context["project"].slug, trace_id])
        except NoReverseMatch:
            return ""

    shown: dict[str, Any] = {
        "turns": turns,
        "failing": context.get("failing"),
        "chosen": context.get("chosen"),
        "selectable": selectable,
        "in_pane": context.get("in_pane"),
        "address": address("detail"),
        "turn_address": address("turn"),
        "download": address("download"),
        # Whether there is somebody to be asked for more of a turn.
        "can_ask": selectable is not False and address("turn"),
        "text_shown": TEXT_SHOWN,
    }
    return SafeString(render_to_string("trajectories/turns.html", shown, using="jinja2"))  # Jinja2 has escaped it
