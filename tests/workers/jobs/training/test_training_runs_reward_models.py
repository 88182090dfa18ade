"""A reward model from its launch to a verifier that asks it, in evals and in training: real trainers, real weights."""

import io
import json

import pytest

from flywheel.accounts.actors import Actor
from flywheel.agents.models import RewardModel, Version
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.core.traces import tooling
from flywheel.core.verifiers import VerifierError, reward_model_rules
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import EnvironmentVersion, TaskSet
from flywheel.environments.versions.environment_versions import environment_version
from flywheel.environments.versions.reward_recipes import reward_recipe
from flywheel.evals.models import EvalRun
from flywheel.training.models import Dataset, Point, TrainingRun
from flywheel.training.runs import kept_checkpoints
from tests.conftest import TOOLS, Build, Cast
from tests.evals import fake
from tests.training.conftest import Room, uploaded
from tests.workers.jobs.training.test_training_runs import Launch, launched, log_of, version
from workers.jobs.training import training_runs

__all__ = ["launched"]
pytestmark = pytest.mark.django_db(transaction=True)


def pairs(cast: Cast, build: Build, base: Version, count: int = 40) -> Dataset:
    """Whoever is named is met, and nobody else."""
    rows = []
    for number in range(count):
        person, day = f"Guest{number}", ("monday", "tuesday", "friday")[number % 3]
        right, wrong = (
            tooling.call_text("calendar.create_event", {"person": who, "day": day}) for who in (person, "Nobody")
        )
        asked = [{"role": "user", "content": f"Meet {person} on {day}"}]
        said = {
            name: [{"role": "assistant", "content": text}] for name, text in (("chosen", right), ("rejected", wrong))
        }
        rows.append(json.dumps({"prompt": asked, **said, "tools": TOOLS}))
    return uploaded(Room(cast, build, base, TaskSet(), EvalRun()), io.BytesIO("\n".join(rows).encode()))


def judging(build: Build, model: RewardModel, least: float) -> EnvironmentVersion:
    """The environment's next version, where this reward model alone judges."""
    environment = build.environment()
    part = {"name": "liked", "type": "reward_model", "model": str(model), "least": least}
    verifier = {"kind": "rubric", "parts": [part]}
    config, actor = environment.latest.config, Actor(build.cast.builder)
    return environment_version(environment=environment, actor=actor, config=config, verifier=verifier)


def carried_out(run: TrainingRun) -> TrainingRun:
    lease = TrainingRun.claim(run.pk)
    assert lease is not None
    with lease:
        training_runs.train(lease)
    run.refresh_from_db()
    assert run.state == State.SUCCEEDED, run.error
    return run


def test_it_is_trained_judges_in_an_eval_and_rewards_in_training(launched: Launch, build: Build, cast: Cast) -> None:
    base, task_set = version(build), build.task_set(train=6, held_out=5)
    versions = set(Version.objects.all())
    settings = {"learning_rate": 1e-3}
    run = launched(40, "reward_model", task_set, base=base, dataset=pairs(cast, build, base), settings=settings)
    carried_out(run)
    made = run.reward_model
    assert made is not None
    assert (str(made), run.produced, run.evaluation) == ("assistant-reward@1", None, None)
    assert set(Version.objects.all()) == versions, "nothing that could be asked, compared or promoted"
    with pytest.raises(Refused, match="trains a reward model, which is no version"):
        kept_checkpoints.make_version(run, run.done, Actor(cast.trainer))
    pairs_right = made.canaries["pairs"]
    assert (pairs_right["mean"], pairs_right["n"]) == (1, 8)
    assert pairs_right["low"] > 0.5
    assert set(made.canaries["degenerate"]) == set(reward_model_rules.KINDS)
    last = run.points.filter(kind=Point.Kind.VALIDATION).latest("step").values
    assert (last["pair_accuracy"], last["n"]) == (1, 8)
    assert "made assistant-reward@1; it may judge" in log_of(run)

    with pytest.raises(VerifierError, match=r"parts\.0\.least: 0\.5 is too low for assistant-reward@1: .* would pass"):
        judging(build, made, 0.5)
    frozen = judging(build, made, 0.98)
    assert frozen.verifier["parts"][0]["digest"] == made.weights.digest
    judged = build.task_set(train=6, held_out=4)
    evaluation = fake.submit(build, judged, base, samples=1)

    def half_right(request: ChatRequest) -> ChatResponse:
        return (fake.right if int(request.messages[-1].content.split()[1][6:]) % 2 else fake.wrong)(request)

    with pytest.MonkeyPatch.context() as patch:
        fake.carry_out(evaluation, patch, half_right)
    results = list(evaluation.results.select_related("task"))
    assert (evaluation.state, len(results)) == (State.SUCCEEDED, 4)
    for result in results:
        assert result.success is bool(int(result.task.prompt.split()[1][6:]) % 2), result.reason
        assert result.parts["liked"] == result.score

    practised = carried_out(launched(2, "grpo", judged, base=base, settings={"num_generations": 4}))
    spec = json.loads((practised.directory / "spec.json").read_text())
    assert set(spec["reward_models"]) == {made.weights.digest}
    metrics = practised.points.filter(kind=Point.Kind.STEP).latest("step").values
    assert {"reward_mean", "reward/liked"} <= set(metrics)
    assert metrics["unscored"] == 0
    assert practised.points.filter(kind=Point.Kind.EVAL).latest("step").values["n"] == 4

    part = {"name": "liked", "type": "reward_model", "model": str(made), "least": 0.98, "weight": 1}
    recipe, _ = reward_recipe(project=cast.project, name="liked", parts=[part], actor=Actor(cast.builder))
    assert recipe.parts[0]["digest"] == made.weights.digest
    build.overridden(base, task_set, recipe)
    settings = {"num_generations": 4}
    by_recipe = carried_out(launched(2, "grpo", task_set, base=base, reward=recipe, settings=settings))
    metrics = by_recipe.points.filter(kind=Point.Kind.STEP).latest("step").values
    assert ("reward/liked" in metrics, metrics["unscored"]) == (True, 0)
