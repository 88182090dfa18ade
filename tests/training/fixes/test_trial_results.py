"""Results of several drafts: how wide the best one's interval is, and what became of it."""

import numpy as np
import pytest

from flywheel.accounts.actors import Actor
from flywheel.core.evidence.statistics.estimates import Estimate, paired_difference
from flywheel.promotions.models import Candidate
from flywheel.training.fixes import trial_lifecycle
from flywheel.training.fixes.trial_results import level_of, tried_fixes
from tests.conftest import SYSTEM
from tests.training.fixes.conftest import BETTER, Desk, draft

DRAFTS, TASKS, ROUNDS = 10, 30, 1_500


def best_of_nothing(draws: np.random.Generator, level: float) -> Estimate:
    """The best of drafts that change nothing, each in a trial of its own against the same parent."""
    chances = draws.beta(2, 2, TASKS)
    parent, *drafts = (draws.binomial(4, chances) / 4 for _ in range(1 + DRAFTS))
    best = max(drafts, key=lambda each: float(each.mean()))
    return paired_difference(list(map(float, parent)), list(map(float, best)), list(range(TASKS)), level=level)


def test_the_best_of_many_that_change_nothing_is_called_better_in_one_of_twenty_at_most() -> None:
    draws = np.random.default_rng(7)
    lows = [best_of_nothing(draws, level_of(DRAFTS)).low for _ in range(ROUNDS)]
    assert sum(low is not None and low > 0 for low in lows) <= 0.05 * ROUNDS
    lows = [best_of_nothing(draws, level_of(1)).low for _ in range(ROUNDS)]
    assert sum(low is not None and low > 0 for low in lows) > 0.05 * ROUNDS, "each by itself would be"


@pytest.mark.django_db
def test_the_ladder_knows_of_how_many_trials_the_best_is_picked(desk: Desk) -> None:
    desk.start(draft("names", BETTER))
    desk.carry_out()
    for number in range(3):
        desk.start(draft("polite", f"{SYSTEM} Be polite {number}."))
    desk.carry_out()
    found = tried_fixes(desk.parent, desk.task_set)["prompt"]
    assert found.gain is not None
    assert (found.drafts, found.compared, found.version) == (4, 4, "assistant@2")
    assert found.gain.level == pytest.approx(1 - 0.05 / 4)
    assert "4 drafts of the prompt tried on 12 tasks for training of" in found.words("prompt")
    assert "(wide enough for the best of 4)" in found.words("prompt")

    desk.start(draft("names, again", BETTER))
    found = tried_fixes(desk.parent, desk.task_set)["prompt"]
    assert (found.drafts, found.compared) == (5, 4), "the same two evals are one comparison"
    other = desk.build.task_set(train=6, held_out=6, name="other")
    desk.start(draft("tools", None, **{"email.send": "Send one email."}), task_set=other)
    desk.start(draft("polite", f"{SYSTEM} Be kind."), task_set=other)
    desk.carry_out()
    found = tried_fixes(desk.parent, desk.task_set)["prompt"]
    assert (found.drafts, found.compared, found.sets) == (6, 6, 2), "the best of any set is picked among all of them"
    assert "6 drafts of the prompt tried on 2 task sets, among them 12 tasks for training of" in found.words("prompt")


@pytest.mark.django_db
@pytest.mark.parametrize(("state", "word"), [("promoted", "approved"), ("rejected", "rejected"), ("void", "void")])
def test_what_was_decided_waits_for_nobody(desk: Desk, state: str, word: str) -> None:
    trial = desk.start(draft("names", BETTER))
    desk.carry_out()
    trial_lifecycle.measure(trial, Actor(desk.cast.trainer))
    desk.carry_out()
    assert tried_fixes(desk.parent, desk.task_set)["prompt"].is_promising
    Candidate.objects.update(state=state)
    found = tried_fixes(desk.parent, desk.task_set)["prompt"]
    assert found.verdict == word
    assert not found.is_promising
    assert found.words("prompt").endswith(f"On held-out tasks: {word}.")
