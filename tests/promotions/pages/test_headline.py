from types import SimpleNamespace
from typing import Any, cast

from flywheel.environments.models import Suite
from flywheel.promotions.models import Candidate
from flywheel.promotions.pages.headline import Headline, headline
from flywheel.promotions.suite_standings import Standing

GAIN = {"name": "success", "passed": True, "harm": False, "detail": "at least +9.1 points"}
LOST = {"name": "success", "passed": False, "harm": False, "detail": "chance alone could explain it"}
SLICES = {"name": "slices", "passed": False, "harm": True, "detail": "success fell in invented tool −40.0 points"}
COST = {"name": "cost", "passed": False, "harm": False, "detail": "a rise of 12 % is not ruled out"}


def of(
    verdict: str, *checks: dict[str, Any], stands: tuple[Standing, ...] = (), final: dict[str, Any] | None = None
) -> Headline:
    row = SimpleNamespace(verdict=verdict, report={"decision": {"checks": checks}})
    return headline(cast(Candidate, row), stands, final)


def stand(state: str, words: str) -> Standing:
    return Standing(Suite(name="golden", version=1), state, words, None, None)


def test_what_got_worse_comes_before_what_could_not_be_shown() -> None:
    said = of("not_shown", LOST, stands=(stand("below", "4 tasks newly failed"),))
    assert said == Headline(
        "bad", "Do not promote.", ["suite golden@1, 4 tasks newly failed"], [], "chance alone could explain it"
    )
    regressed = of("regressed", GAIN, SLICES)
    assert (regressed.verdict, regressed.worse) == ("Do not promote.", ["success fell in invented tool −40.0 points"])


def test_what_lacks_evidence_is_open_and_not_worse() -> None:
    said = of("not_shown", GAIN, COST)
    assert (said.tone, said.verdict) == ("warn", "Not shown to be better.")
    assert (said.worse, said.missing) == ([], ["a rise of 12 % is not ruled out"])
    waits = of("eligible", GAIN, stands=(stand("missing", "has not run it"),))
    assert (waits.tone, waits.verdict, waits.missing) == ("warn", "Not ready.", ["suite golden@1 is not run"])
    unasked = of("eligible", GAIN, final={"state": "unopened", "label": "not asked"})
    assert (unasked.verdict, unasked.missing) == ("Not ready.", ["its sealed part is not asked"])


def test_nothing_stands_in_the_way_of_a_gain_that_is_shown() -> None:
    passed = stand("passed", "every task passed")
    said = of("eligible", GAIN, {**COST, "passed": None}, stands=(passed,))
    assert said == Headline("ok", "Shown to be better.", [], [], "at least +9.1 points")


def test_arms_that_cannot_be_compared_say_why_and_nothing_of_success() -> None:
    told = "the two arms were scored by other verifiers"
    fault = {"name": "verifier", "passed": False, "harm": False, "detail": told}
    assert of("invalid", fault) == Headline("bad", "Not comparable.", [], [told], "")
