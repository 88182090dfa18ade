"""A candidate's evidence in a few words, in the order in which a person decides: whether it may go live, what got
worse, how many tasks turned, and the whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from flywheel.promotions.models import Candidate
from flywheel.promotions.suite_standings import Standing

Tone = Literal["ok", "warn", "bad"]
SHOWN_WORSE: Final = "below"
"""The state of a suite of which harm is shown; others that stop a candidate lack evidence."""


@dataclass(frozen=True)
class Headline:
    tone: Tone
    verdict: str
    worse: list[str]
    """What is shown to be worse, the success of all tasks left out."""
    missing: list[str]
    """What else stops it, the same left out."""
    overall: str
    """What the gate says of the success of all tasks; empty where nothing was compared."""


def headline(row: Candidate, stands: Sequence[Standing], final: Mapping[str, Any] | None) -> Headline:
    """Return what the gate, the suites and the sealed part (`sealed_comparison.final`) come to together."""
    checks = {check["name"]: check for check in row.report["decision"]["checks"]}
    success: Mapping[str, Any] = checks.pop("success", {})
    failed = [check for check in checks.values() if check["passed"] is False]
    open_ = [stand for stand in stands if not stand.is_passed]
    worse = [check["detail"] for check in failed if check["harm"]]
    worse += [f"suite {stand.suite}, {stand.words}" for stand in open_ if stand.state == SHOWN_WORSE]
    missing = [check["detail"] for check in failed if not check["harm"]]
    missing += [f"suite {stand.suite} is {stand.label}" for stand in open_ if stand.state != SHOWN_WORSE]
    if final and final["state"] != "eligible":
        missing.append(f"its sealed part is {final['label']}")
    return Headline(*_verdict(row.verdict, worse, missing), worse, missing, success.get("detail", ""))


def _verdict(gate: str, worse: Sequence[str], missing: Sequence[str]) -> tuple[Tone, str]:
    if gate == Candidate.Verdict.INVALID:
        return "bad", "Not comparable."
    if gate == Candidate.Verdict.REGRESSED or worse:
        return "bad", "Do not promote."
    if gate == Candidate.Verdict.NOT_SHOWN:
        return "warn", "Not shown to be better."
    return ("warn", "Not ready.") if missing else ("ok", "Shown to be better.")
