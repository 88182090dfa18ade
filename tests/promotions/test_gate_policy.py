"""A policy that the set cannot satisfy is refused when it is saved, and every other one is kept as a version."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.core.evidence.gate.decision import Policy as Rules
from flywheel.edge.refusals import Refused
from flywheel.promotions.gate_policy import change_policy, deciding_set, with_planned_margins
from flywheel.promotions.models import Candidate, Policy
from flywheel.promotions.pages.forms import PolicyForm
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db

STRICT = Rules(strict=True, slice_min_tasks=1).to_dict()


def changed(cast: Cast, rules: dict[str, object]) -> Policy:
    return change_policy(project=cast.project, actor=Actor(cast.admin), rules=rules, reason="surer")


def test_without_a_set_any_policy_is_saved(cast: Cast, build: Build) -> None:
    assert deciding_set(cast.project) is None
    assert changed(cast, STRICT).rules["strict"] is True


def test_a_strict_policy_that_the_set_cannot_satisfy_is_refused_with_the_numbers(cast: Cast, build: Build) -> None:
    task_set = build.task_set(train=2, held_out=12)
    with pytest.raises(Refused, match=f"{task_set} cannot satisfy this: only 0% of candidates") as refused:
        changed(cast, STRICT)
    assert "by 12 held-out tasks × 4" in refused.value.problem
    assert "held-out tasks like these would do, too" in refused.value.problem
    assert refused.value.field in Rules().to_dict()
    assert changed(cast, {**STRICT, "strict": False}).rules["slice_min_tasks"] == 1


def test_what_is_saved_already_may_be_saved_again(cast: Cast, build: Build) -> None:
    made = changed(cast, STRICT)
    build.task_set(train=2, held_out=12)
    assert changed(cast, STRICT) == made


def test_the_set_of_the_newest_candidate_decides_in_its_newest_version(
    cast: Cast, build: Build, candidate: Candidate
) -> None:
    first = candidate.version_eval.task_set
    again = build.task_set(train=2, held_out=13, name=first.name)
    build.task_set(train=2, held_out=14, name="another")
    assert again.version > first.version
    assert deciding_set(cast.project) == again


def test_the_form_shows_the_refusal_beside_its_field(
    cast: Cast, build: Build, sign_in: Callable[[User], Client]
) -> None:
    build.task_set(train=2, held_out=12)
    data = {
        "delta_min": "0",
        "min_clusters": "5",
        "min_fill": "98",
        "invalid_margin": "1",
        "unsafe_margin": "0",
        "strict": "on",
        "reason": "surer",
    }
    answer = sign_in(cast.admin).post(reverse("promotions:policy", args=["acme"]), data)
    page = answer.content.decode()
    assert answer.status_code == 422
    assert "cannot satisfy this" in page
    assert 'value="surer"' in page, "what was written is kept"
    assert not cast.project.policies.filter(version=2).exists()


def test_margins_that_would_do_are_filled_in_and_nothing_is_saved(
    cast: Cast, build: Build, sign_in: Callable[[User], Client]
) -> None:
    page, address = sign_in(cast.admin), reverse("promotions:policy", args=["acme"])
    assert "Fill in margins" not in page.get(address).content.decode(), "there is no set yet"
    task_set = build.task_set(train=2, held_out=60)
    assert f"Fill in margins for {task_set}" in " ".join(page.get(address).content.decode().split())
    wanted = with_planned_margins(cast.project, Rules(strict=True).to_dict())
    assert wanted["latency_margin"] > Rules().latency_margin
    data = {name: value for name, value in PolicyForm.of(Rules().to_dict()).initial.items() if value is not None}
    answer = page.post(address, {**data, "strict": "on", "plan": "1", "reason": "surer"})
    assert answer.status_code == 200
    assert answer.context["form"].initial["latency_margin"] == pytest.approx(100 * wanted["latency_margin"])
    assert answer.context["reason"] == "surer"
    assert not cast.project.policies.filter(version=2).exists()
