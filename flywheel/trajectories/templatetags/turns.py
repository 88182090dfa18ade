"""`{% turns %}`: the turns of a conversation, as `_turns.html` is asked for them."""

from typing import Any

from django import template
from django.template.context import Context
from django.utils.safestring import SafeString

from flywheel.trajectories.pages.detail.turn_markup import Turns

register = template.Library()


@register.simple_tag(takes_context=True, name="turns")
def write(context: Context) -> SafeString:
    def of(name: str) -> Any:
        return context.get(name)

    turns = of("turns") or []
    writer = Turns(
        context["project"].slug,
        turns[0].trace_id if turns else "",
        failing=of("failing"),
        chosen=of("chosen"),
        selectable=of("selectable"),
        in_pane=bool(of("in_pane")),
    )
    return writer.html(turns)
