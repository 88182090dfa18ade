"""Texts that differ most, within a budget."""

from flywheel.core.evidence.similarity.diverse_choice import choose

MAIL = ["Send Bako an email about the audit", "Send Bako an email about the audits", "Send Bako an email on the audit"]
OTHERS = ["Cancel my lunch on friday", "Which room is free at nine o'clock?"]


def test_what_differs_is_chosen_before_what_is_alike() -> None:
    texts = [*MAIL, *OTHERS]
    for seed in range(10):
        chosen = choose(texts, [1] * 5, budget=100, most=3, seed=seed)
        assert len({min(place, 2) if place < 3 else place for place in chosen}) == 3, "one of the three that are alike"


def test_a_seed_chooses_the_same_again_in_whatever_order_they_came() -> None:
    texts = [*MAIL, *OTHERS]
    chosen = [texts[place] for place in choose(texts, [1] * 5, budget=3, most=9, seed=4)]
    backwards = texts[::-1]
    assert [backwards[place] for place in choose(backwards, [1] * 5, budget=3, most=9, seed=4)] == chosen
    assert len({choose(texts, [1] * 5, budget=1, most=1, seed=seed)[0] for seed in range(20)}) > 1


def test_the_budget_is_kept_and_what_does_not_fit_is_passed_over() -> None:
    texts = [*MAIL, *OTHERS]
    costs = [50, 10, 10, 10, 90]
    for seed in range(10):
        chosen = choose(texts, costs, budget=60, most=5, seed=seed)
        assert sum(costs[place] for place in chosen) <= 60
        assert 4 not in chosen
    assert choose(texts, costs, budget=9, most=5, seed=1) == []
    assert choose([], [], budget=9, most=5, seed=1) == []


def test_the_very_same_text_is_chosen_once() -> None:
    assert len(choose(["Cancel my lunch"] * 4, [1] * 4, budget=9, most=4, seed=1)) == 1
