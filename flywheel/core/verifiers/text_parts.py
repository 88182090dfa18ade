"""Parts of a rubric that compare the answer with a text: what it must be or contain, and how alike the two are."""

import json
from collections.abc import Mapping
from typing import Any

from flywheel.core.verifiers import Verdict, part_checks
from flywheel.core.verifiers.attempt_places import read, shown
from flywheel.core.verifiers.rubric_parts import PARTS, PATH, TARGET, Case, NoTarget, Setting, expected_value, part
from flywheel.core.verifiers.text_similarity import METRICS, similarity

__all__ = ["PARTS"]

_VALUE = Setting("Wanted: text")


def _texts(settings: Mapping[str, Any], case: Case) -> tuple[str, str]:
    """The answer, or its field, and the wanted text, without spaces at their ends."""
    wanted = expected_value(settings, case)
    if not isinstance(wanted, str | int | float):
        raise NoTarget(f"what is wanted is no text: {shown(wanted)}")
    value = read("answer", settings.get("path", ""), case.trace)[0]
    texts = (each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in (value, wanted))
    one, other = (each.strip() for each in texts)
    return one, other


@part(
    "text",
    "Text",
    "The answer is the wanted text, is another, or contains it.",
    {
        "path": PATH,
        "target": TARGET,
        "value": _VALUE,
        "compare": Setting(
            "The answer must",
            "choice",
            choices={
                "be": "be the text",
                "differ": "be another text",
                "contain": "contain the text",
                "contain_any_case": "contain the text, capitals aside",
            },
        ),
    },
    check=part_checks.wanted_value,
)
def _text(settings: Mapping[str, Any], case: Case) -> Verdict:
    text, wanted = _texts(settings, case)
    match settings.get("compare", "be"):
        case "be":
            return Verdict(float(text == wanted), f"{shown(text)}, wanted {shown(wanted)}")
        case "differ":
            return Verdict(
                float(text != wanted), f"{shown(text)} is" + ("" if text == wanted else " not") + " that text"
            )
        case how:
            is_there = wanted in text if how == "contain" else wanted.casefold() in text.casefold()
            if not wanted:
                raise NoTarget("what is wanted is empty, and every answer contains that")
            return Verdict(float(is_there), f"{shown(wanted)} is" + ("" if is_there else " not") + " there")


def _check_similarity(where: str, settings: dict[str, Any]) -> None:
    part_checks.wanted_value(where, settings)
    part_checks.least(where, settings)


@part(
    "similarity",
    "Similarity of texts",
    "How alike the answer and the wanted text are, from 0 to 1; from the least on it passes.",
    {
        "path": PATH,
        "target": TARGET,
        "value": _VALUE,
        "metric": Setting("Measure", "choice", choices={name: name.replace("_", " ") for name in METRICS}),
        "least": Setting("Passes from", "number", "Such as 0.8; empty: only the same text passes."),
    },
    check=_check_similarity,
)
def _similarity(settings: Mapping[str, Any], case: Case) -> Verdict:
    metric = settings.get("metric", METRICS[0])
    text, wanted = _texts(settings, case)
    score = similarity(metric, text, wanted)
    passes = score >= settings.get("least", 1.0) - 1e-9
    return Verdict(1.0 if passes else score, f"{metric} {score:.3g} to {shown(wanted)}")
