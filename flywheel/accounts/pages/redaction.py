"""Settings › Redaction: what is taken out of traces before they are stored."""

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.accounts.project_settings import redaction_policy
from flywheel.core.redaction import PLACEHOLDER, BadRule, Mode

MODES = {
    Mode.SECRETS: "passwords, tokens, keys, cookies, private keys, JWTs, payment cards. Other data stays.",
    Mode.STRICT: "also e-mail addresses, phone numbers, IBANs and social security numbers, anywhere in the text.",
    Mode.OFF: "everything is stored unchanged.",
}
EMPTY_ROWS = 2
LONGEST_TRIAL = 20_000


@require_http_methods(["GET", "POST"])
@requires(Permission.ADMIN)
def policy(request: PageRequest) -> HttpResponse:
    """The policy that holds, and a new one."""
    if request.method != "POST":
        return render(request, "accounts/redaction.html", _context(request))
    mode, rules = request.POST.get("mode", ""), _rules(request)
    error = "" if mode in list(Mode) else "Choose one of the modes."
    if not error:
        try:
            redaction_policy.set_policy(project=request.project, actor=request.actor, mode=mode, rules=rules)
        except BadRule as refused:
            error = f"Nothing was changed: {refused}."
    if error:
        return render(request, "accounts/redaction.html", _context(request, mode, rules, error), status=422)
    messages.success(request, "Saved. New traces are redacted like this; stored ones stay unchanged.")
    return redirect("settings:redaction", project=request.project.slug)


@require_POST
@requires(Permission.ADMIN)
def try_redaction(request: PageRequest) -> HttpResponse:
    """Show how a text would be redacted. Nothing of it is stored."""
    given = request.POST.get("text", "")[:LONGEST_TRIAL]
    redactor = redaction_policy.redactor_of(request.project)
    new, counts = redactor.text(given)
    return render(
        request,
        "accounts/_redacted.html",
        {
            "pieces": _pieces(new),
            "counts": sorted(counts.items()),
            "mode": redactor.mode.value,
            "empty": not given.strip(),
        },
    )


def _pieces(text: str) -> list[dict[str, Any]]:
    """The text cut at its placeholders, so that the page can mark them."""
    raw, pieces, done = text.encode("utf-8", "replace"), [], 0
    for match in PLACEHOLDER.finditer(raw):
        pieces += [{"text": raw[done : match.start()].decode(), "is_placeholder": False}]
        pieces += [{"text": match.group().decode(), "is_placeholder": True}]
        done = match.end()
    return [*pieces, {"text": raw[done:].decode(), "is_placeholder": False}]


def _rules(request: PageRequest) -> list[dict[str, str]]:
    """The rows that are filled in and not to be removed."""
    columns = [request.POST.getlist(name) for name in ("name", "pattern", "kind")]
    removed = set(request.POST.getlist("remove"))
    rows = [dict(zip(("name", "pattern", "kind"), row, strict=True)) for row in zip(*columns, strict=False)]
    return [row for number, row in enumerate(rows) if str(number) not in removed and any(map(str.strip, row.values()))]


def _context(
    request: PageRequest, mode: str = "", rules: list[dict[str, str]] | None = None, error: str = ""
) -> dict[str, Any]:
    held = redaction_policy.policy_of(request.project)
    shown = held.rules if rules is None else rules
    return {
        "policy": held,
        "mode": mode or held.mode,
        "modes": [(item.value, says) for item, says in MODES.items()],
        "rules": [*shown, *([{}] * EMPTY_ROWS)],
        "error": error,
        "changes": redaction_policy.changes(request.project),
        "version": redaction_policy.redactor_of(request.project).version,
    }
