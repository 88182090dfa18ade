"""An audit of a reward recipe: of outputs that it has scored upon the verifier, judged as blind, for it alone."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.core.evidence.reward_audit_rule import RENEWAL
from flywheel.edge.refusals import Refused
from flywheel.environments.models import RewardRecipe
from flywheel.environments.versions.reward_recipes import reward_recipe
from flywheel.evals import run_rescores
from flywheel.evals.models import EvalRun, Rescore, RewardAudit
from flywheel.evals.reward_audits import audit_lifecycle as verbs
from flywheel.evals.reward_audits.reward_standing import Judged, standing
from tests.conftest import Build, Cast
from tests.evals.reward_audits.test_audit_lifecycle import TASKS, evaluated
from tests.pages import page_of
from tests.workers.judging.test_attempt_verdicts import carry_out

LATE: tuple[dict[str, Any], ...] = (
    {"type": "regex", "name": "day", "pattern": "friday", "weight": 1},
    {"type": "environment", "name": "task", "weight": 0},
    {"type": "length", "name": "short", "weight": -0.5, "free": 1, "most": 2},
)
"""Passes what the verifier of these evals fails, and the reverse; what it shapes says nothing of that."""


@pytest.fixture
def run(build: Build) -> EvalRun:
    return evaluated(build, build.version(), build.task_set(train=TASKS, held_out=1))


def recipe(cast: Cast, *parts: dict[str, Any]) -> RewardRecipe:
    made, _ = reward_recipe(project=cast.project, name="late", parts=list(parts or LATE), actor=Actor(cast.builder))
    return made


def scored(run: EvalRun, by: RewardRecipe, cast: Cast) -> Rescore:
    job, _ = run_rescores.submit_recipe(run=run, recipe=by, actor=Actor(cast.builder), key=uuid.uuid4())
    carry_out(job)
    return job


def finished(run: EvalRun, by: RewardRecipe, cast: Cast, wrong: int = 0, **fields: Any) -> RewardAudit:
    """Judged as the recipe did, but for the first `wrong` of what it passed."""
    audit, _ = verbs.begin(run=run, recipe=by, actor=Actor(cast.builder), **fields)
    for item in audit.items.select_related("rescored"):
        agree = not (item.verdict.success and wrong > 0)
        wrong -= not agree
        said = "pass" if bool(item.verdict.success) is agree else "fail"
        assert verbs.judge(item=item, actor=Actor(cast.reviewer), answer=said)
    return verbs.finish(audit=audit, actor=Actor(cast.reviewer))


def test_it_is_drawn_from_what_the_recipe_passed_and_holds_for_that_version_alone(run: EvalRun, cast: Cast) -> None:
    late = recipe(cast)
    here = Judged.now(run.version, run.task_set, late)
    assert standing(here).words == "the reward recipe late@1 judges by parts of its own and is not audited yet"
    with pytest.raises(Refused, match=rf"late@1 has not scored {run} yet: have it do that first") as caught:
        verbs.begin(run=run, recipe=late, actor=Actor(cast.builder))
    assert caught.value.field == "run"
    job = scored(run, late, cast)
    row = job.scores.select_related("result").filter(result__sample=0).first()
    assert row is not None
    assert (row.success, row.result.success, row.parts["day"], row.parts["task"]) == (False, True, 0.0, 1.0)
    assert "short" not in row.parts, "what shapes is not audited"
    audit = finished(run, late, cast)
    drawn = audit.items.select_related("rescored", "result")
    assert sum(bool(item.verdict.success) for item in drawn) == 40
    assert all(item.verdict.success is not item.result.success for item in drawn)
    assert (audit.is_green, audit.result["judged"], audit.result["attempts"]) == (True, 60, 3 * TASKS)
    found = standing(here)
    assert (found.state, found.allows, found.audit) == ("green", True, audit)
    assert found.words.startswith("reviewers agree with late@1 on 100% of 60 outputs")
    assert standing(Judged.of(run)).state == "none", "nobody has looked at the verifier's passes"
    again = standing(Judged.now(run.version, run.task_set, recipe(cast, *LATE[:2])))
    assert (again.state, again.allows) == ("stale", False)
    assert again.words.endswith("the recipe was late@1")
    verifier, _ = verbs.begin(run=run, actor=Actor(cast.builder))
    assert sum(bool(item.verdict.success) for item in verifier.items.all()) == 40, "of its own passes"


def test_a_recipe_that_passes_what_the_verifier_passes_is_audited_as_that(run: EvalRun, cast: Cast) -> None:
    shaping = recipe(cast, {"type": "environment", "name": "task", "weight": 1}, LATE[2])
    with pytest.raises(Refused, match="late@1 passes exactly what the verifier passes"):
        run_rescores.submit_recipe(run=run, recipe=shaping, actor=Actor(cast.builder), key=uuid.uuid4())
    audit, _ = verbs.begin(run=run, recipe=shaping, actor=Actor(cast.builder))
    assert (audit.recipe, audit.verifier_digest) == (None, run.verifier_digest)


def test_what_could_not_judge_the_eval_is_refused(run: EvalRun, cast: Cast) -> None:
    def refused(by: RewardRecipe) -> str:
        with pytest.raises(Refused) as caught:
            run_rescores.submit_recipe(run=run, recipe=by, actor=Actor(cast.builder), key=uuid.uuid4())
        return str(caught.value)

    assert "this environment keeps no state" in refused(recipe(cast, {"type": "state"}))
    EvalRun.objects.filter(pk=run.pk).update(verifier_digest="0" * 64)
    run.refresh_from_db()
    assert "a verifier that has changed since" in refused(recipe(cast))


def test_few_outputs_renew_it_for_a_version_that_was_trained_on(run: EvalRun, build: Build, cast: Cast) -> None:
    late = recipe(cast)
    scored(run, late, cast)
    whole = finished(run, late, cast)
    moved = evaluated(
        build, build.version(parent=run.version, base_model="tiny, trained"), run.task_set, to=uuid.uuid4().hex
    )
    scored(moved, late, cast)
    with pytest.raises(Refused, match="under this verifier"):
        verbs.begin(run=moved, actor=Actor(cast.builder), size=RENEWAL.judged, is_renewal=True)
    small = finished(moved, late, cast, size=RENEWAL.judged, is_renewal=True)
    assert (small.renews, small.is_green, small.result["judged"]) == (whole, True, 24)
    assert standing(Judged.now(moved.version, moved.task_set, late)).state == "renewed"


def test_the_pages_lead_from_the_recipe_to_its_verdicts(
    run: EvalRun, cast: Cast, sign_in: Callable[[User], Client]
) -> None:
    late, client = recipe(cast), sign_in(cast.builder)
    address = f"/p/acme/evals/reward/?version={run.version}&task_set={run.task_set}&reward={late}"
    text = page_of(client.get(address))
    assert f"Score {run}</button>" in text
    assert "Start the audit" not in text
    begun = {"run": run.pk, "size": 60, "seed": 1, "reward": str(late)}
    assert "has not scored" in page_of(client.post("/p/acme/evals/reward-audits/begin/", begun, follow=True))
    asked = client.post(f"/p/acme/evals/{run.pk}/rescore/", {"reward": str(late), "key": str(uuid.uuid4())})
    job = Rescore.objects.get()
    assert "Scores of" in page_of(client.get(address))
    carry_out(job)
    text = page_of(client.get(asked.headers["Location"]))
    assert f"Eval {run.pk} under the reward recipe late@1" in text
    assert "Audit the recipe" in text
    text = page_of(client.get(address))
    assert "Start the audit" in text
    assert "Score eval" not in text
    client.post("/p/acme/evals/reward-audits/begin/", begun)
    here = f"/p/acme/evals/reward-audits/{RewardAudit.objects.get().pk}/"
    desk = page_of(client.get(here))
    assert "recipe's verdicts are shown once all are judged" in desk
    assert "nothing like it in" not in desk, "the recipe's reason stays hidden"
    audit = finished(run, late, cast, wrong=1)
    text = page_of(client.get(here))
    assert "people failed 1 of 40 outputs that late@1 passed" in text
    assert "task 0.00" in " ".join(text.split()), "the verifier's own verdict among the parts"
    assert "late@1" in page_of(client.get("/p/acme/evals/reward-audits/"))
    assert audit.result["faults"]


def test_a_program_scores_audits_and_reads_both_verdicts(
    run: EvalRun, cast: Cast, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    late, headers = recipe(cast), key("read", "build", "review", by=cast.admin)

    def call(path: str, body: Any = None) -> Any:
        address = f"/api/v1{path}"
        if body is None:
            return client.get(address, headers=headers).json()
        return client.post(address, body, content_type="application/json", headers=headers).json()

    scores = f"/evals/{run.pk}/rescores"
    for wrong in ({"version": 1, "reward": "late@1"}, {"key": str(uuid.uuid4())}):
        assert call(scores, wrong)["detail"] == "version: give either the number of a version or a reward recipe"
    told = call(scores, {"reward": "late@1"})
    assert (told["reward_recipe"], told["verifier_digest"]) == (
        "late@1",
        late.judged_by(run.task_set.environment_version.verifier),
    )
    assert "has not scored" in call("/reward-audits", {"eval": run.pk, "reward": "late@1"})["detail"]
    carry_out(Rescore.objects.get())
    audit = call("/reward-audits", {"eval": run.pk, "reward": "late@1"})
    assert (audit["reward_recipe"], audit["outputs"]) == ("late@1", 60)
    items = f"/reward-audits/{audit['id']}/items"
    (blind,) = call(f"{items}?limit=1")["items"]
    assert (blind["verdict"], blind["score"], blind["parts"], blind["verifier_score"]) == (None, None, {}, None)
    finished(run, late, cast)
    (shown,) = call(f"{items}?limit=1")["items"]
    assert shown["score"] == shown["parts"]["day"] == 1 - shown["verifier_score"]
    assert call(f"/rewards/{run.version}/{run.task_set}?reward=late@1")["state"] == "green"
