"""`{% turns %}`: the turns of a conversation, as `_turns.html` is asked for them."""

from django import template
from django.template.context import Context
from django.utils.safestring import SafeString

from flywheel.trajectories.pages.detail.turn_markup import Turns

register = template.Library()


@register.simple_tag(takes_context=True, name="turns")
def write(context: Context) -> SafeString:
    turns = context.get("turns") or []
    writer = Turns(
        context["project"].slug,
        turns[0].trace_id if turns else "",
        failing=context.get("failing"),
        chosen=context.get("chosen"),
        selectable=context.get("selectable"),
        in_pane=bool(context.get("in_pane")),
    )
    return writer.html(turns)
