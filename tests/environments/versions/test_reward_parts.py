"""A verifier's reward model is looked up once, frozen by its weights, and refused where it may not judge."""

from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Artifact, RewardModel
from flywheel.core.verifiers import VerifierError
from flywheel.environments.models import EnvironmentVersion
from flywheel.environments.versions import reward_parts
from flywheel.environments.versions.environment_versions import environment_version
from tests.conftest import Build

pytestmark = pytest.mark.django_db

CANARIES: dict[str, Any] = {
    "reference": 0.0,
    "pairs": {"mean": 0.9, "low": 0.7, "high": 0.98, "n": 40, "unscored": 0, "sources": 40},
    "chosen": 2.0,
    "rejected": -2.0,
    "degenerate": {"empty": {"median": -1.0, "beaten": 39, "n": 40}},
}


def model(build: Build, number: int = 1, **canaries: Any) -> RewardModel:
    weights = Artifact.objects.create(digest=f"{number}" * 64, manifest={}, kind="reward_model", size=1)
    return RewardModel.make(build.version(), weights, CANARIES | canaries, build.cast.trainer)


def saved(build: Build, ref: str, **part: Any) -> EnvironmentVersion:
    environment = build.environment()
    row = {"type": "reward_model", "model": ref, "least": 0.5, **part}
    return environment_version(
        environment=environment,
        actor=Actor(build.cast.builder),
        config=environment.latest.config,
        verifier={"kind": "rubric", "parts": [row]},
    )


def test_saving_freezes_the_weights_and_the_same_again_is_no_new_version(build: Build) -> None:
    made = model(build)
    version = saved(build, "assistant-reward@1")
    assert version.verifier["parts"][0]["digest"] == made.weights.digest
    assert reward_parts.models_of(build.cast.project, version.verifier) == {made.weights.digest: made}
    assert saved(build, "assistant-reward@1", digest=made.weights.digest) == version


def test_the_same_weights_are_one_reward_model_and_others_the_next_number(build: Build) -> None:
    first = model(build)
    assert RewardModel.make(first.base, first.weights, CANARIES, build.cast.trainer) == first
    assert str(model(build, 2)) == "assistant-reward@2"


@pytest.mark.parametrize(
    ("canaries", "part", "said"),
    [
        (
            {},
            {"ref": "mail-reward@1"},
            r"parts\.0\.model: there is no reward model 'mail-reward@1'; .* assistant-reward@1",
        ),
        ({"pairs": CANARIES["pairs"] | {"low": 0.48}}, {}, r"failed its canaries: it ranks 90\.0% of 40 pairs right"),
        ({"degenerate": {"empty": {"median": 3.0, "beaten": 1, "n": 40}}}, {}, "canaries: an empty answer scores 3.00"),
        (
            {"degenerate": {"empty": {"median": 1.0, "beaten": 9, "n": 40}}},
            {},
            r"least: 0\.5 is too low .* than 0\.731",
        ),
        ({}, {"digest": "f" * 64}, r"parts\.0\.digest: assistant-reward@1 has the weights 111111111111, not ffff"),
    ],
    ids=["unknown", "chance", "loves nothing", "too low", "other weights"],
)
def test_what_may_not_judge_is_refused_with_the_reason(
    canaries: dict[str, Any], part: dict[str, Any], said: str, build: Build
) -> None:
    model(build, **canaries)
    with pytest.raises(VerifierError, match=said):
        saved(build, **{"ref": "assistant-reward@1", **part})
    assert build.environment().versions.count() == 1


def test_a_reward_model_of_another_project_is_unknown(build: Build) -> None:
    made = model(build)
    RewardModel.objects.filter(pk=made.pk).update(project=build.cast.elsewhere)
    with pytest.raises(VerifierError, match="this project has none; train one first"):
        saved(build, "assistant-reward@1")
