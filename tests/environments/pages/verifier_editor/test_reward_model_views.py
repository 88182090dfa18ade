"""Reward models' pages, and the parts that choose one of them: its numbers where it is chosen, and who asks it."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Scope, User
from flywheel.environments.pages.verifier_editor.verifier_forms import Draft
from flywheel.environments.versions import reward_parts
from flywheel.environments.versions.reward_recipes import reward_recipe
from tests.conftest import Build, Cast
from tests.environments.versions.test_reward_parts import model, saved
from tests.pages import page_of

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
HERE = "/p/acme/environments/reward-models/"
LOVES_SILENCE = {"empty": {"median": 3.0, "beaten": 1, "n": 40}}


def part(**fields: str) -> dict[str, str]:
    """A recipe's form with one part that asks a reward model."""
    settings = {"type": "reward_model", "name": "liked", "weight": "1", "least": "0.5", **fields}
    return {"name": "kind", "parts": "1", **{f"p0-{key}": value for key, value in settings.items()}}


def test_a_model_is_listed_with_what_it_ranks_and_shown_with_who_asks_it(
    build: Build, cast: Cast, sign_in: SignIn
) -> None:
    viewer = sign_in(cast.viewer)
    assert "No reward model yet" in page_of(viewer.get(HERE))
    made, failed = model(build), model(build, 2, degenerate=LOVES_SILENCE)
    listed = page_of(viewer.get(HERE))
    assert (listed.count(f"{HERE}assistant-reward@1/"), listed.count("failed"), listed.count("passed")) == (2, 1, 1)
    assert "No verifier and no recipe asks it yet" in page_of(viewer.get(f"{HERE}assistant-reward@1/"))
    version = saved(build, str(made))
    asks = {"type": "reward_model", "model": str(made), "least": 0.5}
    recipe, _ = reward_recipe(project=cast.project, name="kind", parts=[asks], actor=Actor(cast.builder))
    text = page_of(viewer.get(f"{HERE}assistant-reward@1/"))
    assert f"{version}</a>" in text
    assert f"{recipe}</a>" in text
    assert text.count("(n&nbsp;40)") == 1, "the interval has its n"
    assert "A verifier cannot use it: an empty answer scores 3.00" in page_of(viewer.get(f"{HERE}{failed}/"))
    shown = page_of(viewer.get(f"/p/acme/environments/rewards/{recipe.name}/{recipe.number}/"))
    assert f'href="{HERE}{str(made).replace("@", "%40")}/"' in shown
    assert viewer.get(f"{HERE}assistant-reward%401/").status_code == 200
    assert sign_in(cast.stranger).get(f"{HERE}assistant-reward@1/").status_code == 404


def test_a_part_chooses_among_the_models_that_may_judge(build: Build, cast: Cast, sign_in: SignIn) -> None:
    client, new = sign_in(cast.builder), "/p/acme/environments/rewards/new/"
    added = {"name": "kind", "parts": "0", "do": "add", "kind": "reward_model"}
    assert "None yet: train one from pairs" in page_of(client.post(new, added))
    model(build)
    model(build, 2, degenerate=LOVES_SILENCE)
    text = page_of(client.post(new, added))
    assert '<option value="assistant-reward@1">assistant-reward@1, 90% of 40 unseen pairs right</option>' in text
    assert '<option value="assistant-reward@2" disabled>' in text
    assert "p0-digest" not in text
    missing = client.post(new, {**part(model=""), "do": "save"})
    assert (missing.status_code, "expected a name@number" in page_of(missing)) == (422, True)
    unknown = page_of(client.post(new, {**part(model="gone-reward@7"), "do": "save"}))
    assert '<option value="gone-reward@7" selected>' in unknown
    assert "there is no reward model" in unknown
    first = client.post(new, {**part(model="assistant-reward@1"), "do": "save"}, follow=True)
    assert "kind@1" in page_of(first)
    model(build, 3)
    again = page_of(client.get(f"{new}?of=kind@1"))
    assert '<option value="assistant-reward@1" selected>' in again
    client.post(new, {**part(model="assistant-reward@3"), "do": "save"})
    made = cast.project.reward_recipes.get(number=2)
    assert made.parts[0]["digest"] == "3" * 64, "of the model that was chosen, not of the one before"


def test_a_draft_is_what_was_saved_although_its_weights_were_looked_up_then(build: Build) -> None:
    model(build)
    draft = Draft.of(saved(build, "assistant-reward@1"), [])
    tried = reward_parts.frozen(build.cast.project, draft.spec)
    assert tried["parts"][0]["digest"] == "1" * 64
    assert draft.is_of(tried)
    draft.lines[0].values["model"] = "assistant-reward@2"
    assert not draft.is_of(tried)


def test_a_program_reads_one_with_what_uses_it(build: Build, client: Client, key: Any) -> None:
    made = model(build)
    version = saved(build, str(made))
    headers = key(Scope.READ, by=build.cast.viewer)
    told = client.get("/api/v1/reward-models/assistant-reward/1", headers=headers).json()
    assert (told["digest"], told["verifiers"], told["recipes"], told["runs"]) == (
        made.weights.digest,
        [str(version)],
        [],
        [],
    )
    assert client.get("/api/v1/reward-models/assistant-reward/2", headers=headers).status_code == 404
