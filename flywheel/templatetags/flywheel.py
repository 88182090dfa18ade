"""The words and numbers of the pages, written one way everywhere (docs/design/ui-components.md).

A built-in template library: templates use it without {% load %}. What an agent wrote is hostile text: nothing here
marks text as safe; the few tags that answer HTML build it with format_html, which escapes every part.
"""

from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

from django import template
from django.http import QueryDict
from django.template.context import RequestContext
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from flywheel.core.detectors.standard_buckets import detector_named, name_of
from flywheel.core.evidence.ramp.ramp_plan import share_words
from flywheel.core.text.glossary import TERMS
from flywheel.core.verifiers import CAUSES
from flywheel.templatetags import numbers, pictures, texts
from flywheel.templatetags.numbers import GAP, NOTHING

register = template.Library()
for library in (numbers, pictures, texts):
    register.filters |= library.register.filters
    register.tags |= library.register.tags


# Time


@register.filter
def ago(value: datetime | date | None) -> str:
    """A moment → <time>: relative at once, exact on hover; app.js rewrites the hover to the person's zone."""
    moment = _moment(value)
    if moment is None:
        return NOTHING
    iso = moment.isoformat(" ", "seconds")
    # Digits and words of ours: escaping them took a fifth of a list's time.
    return SafeString(
        f'<time datetime="{iso[:10]}T{iso[11:]}" title="{iso[:19]} UTC">{relative(moment, timezone.now())}</time>'
    )


def relative(moment: datetime, now: datetime) -> str:
    """`just now`, `2 min ago`, `3 h ago`, `in 5 min`, `4 d ago`, then the date. static/app.js says the same."""
    seconds = (now - moment).total_seconds()
    distance = abs(seconds)
    if distance < 45:
        return "just now" if seconds >= 0 else "in a moment"
    if distance < 3570:
        text = f"{max(1, round(distance / 60))}{GAP}min"
    elif distance < 84_600:
        text = f"{max(1, round(distance / 3600))}{GAP}h"
    elif distance < 30 * 86_400:
        text = f"{max(1, round(distance / 86_400))}{GAP}d"
    else:
        return f"{moment.day}{GAP}{moment:%b %Y}"
    return f"{text} ago" if seconds >= 0 else f"in {text}"


# Words


@register.simple_tag
@lru_cache(maxsize=16)
def mark_outcome(outcome: Any) -> SafeString:
    """✓ success, ✕ failed, – unknown: always a mark and a word, the colour only helps."""
    word = str(getattr(outcome, "value", outcome) or "unknown")
    tone, mark = _OUTCOMES.get(word, ("", "–"))
    return format_html('<span class="chip {}"><span aria-hidden="true">{}</span> {}</span>', tone, mark, word)


@register.simple_tag
def state(value: Any, label: str = "") -> SafeString:
    """A chip for the state of a job, bucket, task or gate, in the tone the same word has on every page."""
    word = str(getattr(value, "value", value) or "unknown")
    tone, mark = _STATES.get(word.lower().replace(" ", "_"), ("", "○"))
    shown = label or word.replace("_", " ")
    return format_html('<span class="chip {}"><span aria-hidden="true">{}</span> {}</span>', tone, mark, shown)


register.filter("detector_named", detector_named)
register.filter("share_words", share_words)
register.filter("bucket_name", name_of)
"""A bucket's key in running text: `wrong tool`. `known_buckets`, the project's, is on every page."""


@register.filter
def cause_words(cause: str) -> str:
    """Why there is no score, in our words: `timeout` → timed out."""
    return CAUSES.get(cause, cause)


@register.simple_tag
def term(name: str, shown: str = "") -> SafeString:
    """A term with its meaning on hover, focus and tap; in other words or another form where `shown` says so. Raises
    KeyError for a term that the glossary does not have."""
    return format_html('<span class="term" tabindex="0" data-means="{}">{}</span>', TERMS[name], shown or name)


@register.simple_block_tag
def empty_state(content: SafeString, title: str, **fields: str) -> SafeString:
    """Say in the tag's content what will stand here; `action`, `action_url`, `command` and `id` are a way to it."""
    return render_to_string("_empty.html", {**fields, "title": title, "text": content})


# The address


@register.simple_tag(takes_context=True)
def query(context: RequestContext, **changes: Any) -> str:
    """`?…` of this page with these parameters changed; None or "" removes one. A new filter forgets the cursor."""
    request = context.get("request")
    parameters = request.GET.copy() if request else QueryDict(mutable=True)
    if "cursor" not in changes:
        parameters.pop("cursor", None)
    for name, value in changes.items():
        if value is None or value == "":
            parameters.pop(name, None)
        elif isinstance(value, list | tuple):
            parameters.setlist(name, [str(item) for item in value])
        else:
            parameters[name] = str(value)
    return f"?{parameters.urlencode()}"


# Parts

_OUTCOMES = {
    "success": ("ok", "✓"),
    "passed": ("ok", "✓"),
    "failed": ("bad", "✕"),
    "failure": ("bad", "✕"),
    "error": ("bad", "✕"),
    "partial": ("warn", "◐"),
}
_OK, _BAD, _WARN, _BUSY, _OFF = ("ok", "✓"), ("bad", "✕"), ("warn", "!"), ("busy", "◐"), ("", "○")
_STATES = {
    **dict.fromkeys(
        ("done", "succeeded", "completed", "finished", "green", "confirmed", "approved", "eligible", "fixed"), _OK
    ),
    **dict.fromkeys(("success", "passed", "resolved", "healthy"), _OK),
    "live": ("base", "●"),
    "promoted": ("base", "●"),
    **dict.fromkeys(("failed", "error", "red", "regressed", "broken", "lost", "rejected", "taken_back"), _BAD),
    **dict.fromkeys(("not_shown", "reopened", "quarantined", "stale", "cancelling", "warning", "invalid"), _WARN),
    **dict.fromkeys(("holding", "stopped"), _WARN),
    **dict.fromkeys(
        ("running", "claimed", "in_progress", "waiting", "pending", "in_review", "fixing", "ramping", "shadow"), _BUSY
    ),
    "open": ("warn", "○"),
    **dict.fromkeys(("queued", "new", "draft", "cancelled", "closed", "muted", "retired", "proposed"), _OFF),
    "train": ("", "□"),
    "held-out": ("", "■"),
    "held_out": ("", "■"),
    "sealed": ("", "■"),
}


def _moment(value: datetime | date | None) -> datetime | None:
    if value is None or value == "":
        return None
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
