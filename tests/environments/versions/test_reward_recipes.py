"""Reward recipes by `name@version`: numbered, immutable, found, refused where they are wrong; their pages and calls."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Scope, User
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.core.digests import digest
from flywheel.core.verifiers import VerifierError
from flywheel.edge.refusals import Refused
from flywheel.environments.models import RewardRecipe
from flywheel.environments.versions.reward_recipes import find_reward_recipe, reward_recipe
from tests.conftest import Cast
from tests.pages import page_of

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
SHORT: list[dict[str, Any]] = [
    {"type": "environment", "name": "task", "weight": 1},
    {"type": "length", "name": "length", "weight": -0.5, "free": 64, "most": 96},
]
NAMED = {"type": "text", "name": "named", "weight": 1, "target": "city", "compare": "contain"}


def made(cast: Cast, parts: list[dict[str, Any]], name: str = "short") -> RewardRecipe:
    return reward_recipe(project=cast.project, name=name, parts=parts, actor=Actor(cast.builder))[0]


def test_a_change_makes_the_next_version_and_nothing_changes_one(cast: Cast) -> None:
    first = made(cast, SHORT)
    assert (str(first), first.digest) == ("short@1", digest(SHORT))
    assert made(cast, SHORT) == first
    second = made(cast, [*SHORT, NAMED])
    assert (str(second), second.rubric.is_own_verdict, first.rubric.is_own_verdict) == ("short@2", False, True)
    assert [find_reward_recipe(cast.project, ref) for ref in ("short", "short@1", "short@2")] == [second, first, second]
    for ref, said in (("short@3", "it has 2, 1"), ("long", "this project has short"), ("a b", "recipe@version")):
        with pytest.raises(Refused, match=said):
            find_reward_recipe(cast.project, ref)
    with pytest.raises(IntegrityError, match="its rows never change"), transaction.atomic():
        RewardRecipe.objects.filter(pk=first.pk).update(parts=[])
    for name, parts, error in (("no spaces", SHORT, Refused), ("x", SHORT[1:], VerifierError)):
        with pytest.raises(error):
            made(cast, parts, name)


def test_a_person_composes_one_and_makes_its_next_version(cast: Cast, sign_in: SignIn) -> None:
    client, slug = sign_in(cast.builder), cast.project.slug
    new = reverse("environments:make_recipe", args=[slug])
    assert "No reward recipe yet" in page_of(client.get(reverse("environments:reward_recipes", args=[slug])))
    begun = page_of(client.get(new))
    assert "The task&#x27;s own verifier" in begun
    sent = {
        "parts": "2", "name": "short",
        "p0-type": "environment", "p0-name": "task", "p0-weight": "1",
        "p1-type": "length", "p1-name": "length", "p1-weight": "-0.5", "p1-shapes": "on", "p1-free": "64",
    }  # fmt: skip
    wrong = client.post(new, {**sent, "do": "save", "p1-most": "64"})
    assert (wrong.status_code, "64 is not above the 64 tokens that are free" in page_of(wrong)) == (422, True)
    nameless = client.post(new, {**sent, "do": "save", "p1-most": "96", "name": "No!"})
    assert (nameless.status_code, "small letters" in page_of(nameless)) == (422, True)
    saved = client.post(new, {**sent, "do": "save", "p1-most": "96"}, follow=True)
    assert "Passes what the verifier passes" in page_of(saved)
    assert "short@1" in page_of(client.get(reverse("environments:reward_recipes", args=[slug])))
    again = page_of(client.get(f"{new}?of=short@1"))
    assert 'value="-0.5"' in again
    added = page_of(client.post(new, {**sent, "do": "add", "kind": "regex", "p1-most": "96"}))
    assert "p2-shapes" in added
    assert sign_in(cast.stranger).get(reverse("environments:reward_recipe", args=[slug, "short", 1])).status_code == 404


def test_a_judge_with_weight_0_is_watched_on_a_sample_that_the_form_takes(cast: Cast, sign_in: SignIn) -> None:
    set_upstream(project=cast.project, actor=Actor(cast.admin), base_url="http://127.0.0.1:9/v1")
    client, new = sign_in(cast.builder), reverse("environments:make_recipe", args=[cast.project.slug])
    sent = {
        "parts": "2", "name": "watch", "do": "save",
        "p0-type": "environment", "p0-name": "task", "p0-weight": "1",
        "p1-type": "judge", "p1-name": "tone", "p1-weight": "0", "p1-criteria": "It is kind.", "p1-model": "m",
        "p1-endpoint": "upstream", "p1-sees": "answer", "p1-sample": "0.25",
    }  # fmt: skip
    wrong = client.post(new, {**sent, "p1-sample": "2"})
    assert (wrong.status_code, "2 is not a share above 0, up to 1" in page_of(wrong)) == (422, True)
    saved = page_of(client.post(new, sent, follow=True))
    assert "Passes what the verifier passes" in saved
    assert "watched, 25% of attempts" in saved
    again = page_of(client.get(f"{new}?of=watch@1"))
    assert 'name="p1-sample" value="0.25"' in " ".join(again.split())
    assert "p0-sample" not in again


def test_a_program_makes_lists_and_reads_them(cast: Cast, client: Client, key: Any) -> None:
    headers = key(Scope.READ, Scope.BUILD, by=cast.builder)

    def post(parts: list[dict[str, Any]]) -> Any:
        body = {"name": "short", "parts": parts}
        return client.post("/api/v1/reward-recipes", body, content_type="application/json", headers=headers)

    assert [post(SHORT).status_code, post(SHORT).status_code, post([*SHORT, NAMED]).status_code] == [201, 200, 201]
    wrong = post([{**SHORT[0], "weight": -1}])
    assert (wrong.status_code, wrong.json()["detail"]) == (422, "parts.0.weight: -1 is not from 0 to 1000")
    rows = client.get("/api/v1/reward-recipes", headers=headers).json()["items"]
    assert [(row["version"], row["passes_as_verifier"]) for row in rows] == [(2, False), (1, True)]
    one = client.get("/api/v1/reward-recipes/short/1", headers=headers).json()
    assert (one["parts"], one["digest"]) == (SHORT, digest(SHORT))
    assert client.get("/api/v1/reward-recipes/short/3", headers=headers).status_code == 404
