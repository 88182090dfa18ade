"""Synthetic variants: proved, in the split of their origin, marked for ever."""

import json
import uuid
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from django.db import DatabaseError, transaction
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.core import envs
from flywheel.core.envs.task_variants import Spec
from flywheel.core.interop import gym_server
from flywheel.core.verifiers import NO_RUNNERS
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.environments.exchange.task_files import import_tasks
from flywheel.environments.models import Generation, Split, Task
from flywheel.environments.proofs.red_green_proof import prove
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.tasks import seeded_tasks, synthetic_variants
from flywheel.environments.tasks.recorded_tasks import task_from
from flywheel.environments.tasks.task_rows import core_task
from flywheel.environments.versions.environment_terms import Terms
from flywheel.environments.versions.environment_versions import environment
from flywheel.evals.models import EvalRun, Result
from flywheel.failures.labels.decisions import decide
from tests.conftest import Build, Cast
from tests.pages import page_of
from workers.tasks import handler

pytestmark = pytest.mark.django_db

PEOPLE = ("Ida", "Ola", "Eva", "Per")


@pytest.fixture
def task(build: Build) -> Task:
    """A proved task: Meet Bako on friday."""
    row = build.task(
        prompt="Meet Bako on friday",
        target={"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}},
        state={"people": ["Bako"]},
    )
    row.proof, row.is_proved = prove(row, row.environment.latest, recorded=None, is_failure=None)
    row.save()
    assert row.is_proved, row.proof
    return row


def submitted(task: Task, cast: Cast, **fields: Any) -> Generation:
    defaults: dict[str, Any] = {"count": 3, "seed": 1, "spec": Spec(("Bako",)), "key": uuid.uuid4()}
    return synthetic_variants.submit(task=task, actor=Actor(cast.builder), **{**defaults, **fields})


def carried_out(job: Generation) -> Generation:
    lease = Generation.claim(job.pk)
    assert lease is not None
    handler("environments.Generation")(lease)
    job.refresh_from_db()
    return job


def test_variants_are_proved_and_stand_where_their_origin_stands(task: Task, cast: Cast) -> None:
    Task.objects.filter(pk=task.pk).update(split=Split.HELD_OUT, slice="formal")
    job = carried_out(submitted(Task.objects.get(pk=task.pk), cast))
    assert (job.state, job.done, job.made) == (State.SUCCEEDED, 3, 3)
    for made in job.tasks.all():
        person = made.target["arguments"]["person"]
        assert made.is_proved, made.proof
        assert (made.prompt, made.state) == (f"Meet {person} on friday", {"people": [person]})
        assert (made.split, made.cluster, made.slice) == (Split.HELD_OUT, task.cluster, "formal")
        checks = {check["name"]: check["passed"] for check in made.proof["checks"]}
        assert checks["the original's answer"]
        assert core_task(made).to_json()["synthetic"] is True
    assert "synthetic" not in core_task(task).to_json()


def test_a_variant_is_synthetic_wherever_it_goes(task: Task, cast: Cast, build: Build) -> None:
    made = carried_out(submitted(task, cast)).tasks.earliest("number")
    rows = [{**core_task(each).to_json(), "split": "train"} for each in (task, made)]
    there = build.environment("there")
    import_tasks(environment=there, lines=[json.dumps(row).encode() for row in rows], actor=Actor(cast.builder))
    assert dict(there.tasks.values_list("prompt", "is_synthetic")) == {task.prompt: False, made.prompt: True}
    env = envs.build("tool_call", there.latest.config, there.latest.verifier)
    lines = gym_server.lines(env, iter([("train", core_task(made))]), environment="there@1", agent="agent")
    served = build.environment("served")
    row = json.loads(next(iter(lines)))
    row["verifier_metadata"]["ground_truth"] = [made.target]
    import_tasks(environment=served, lines=[json.dumps(row).encode()], actor=Actor(cast.builder))
    assert served.tasks.get().is_synthetic


def test_the_page_of_a_variant_leads_back_to_what_happened(
    task: Task, cast: Cast, build: Build, sign_in: Callable[[User], Client]
) -> None:
    source = build.trajectory(task.prompt)
    Task.objects.filter(pk=task.pk).update(source=source, bucket="wrong_tool")
    made = carried_out(submitted(task, cast)).tasks.earliest("number")
    page = sign_in(cast.viewer).get(reverse("environments:task", args=["acme", "mail", made.number]))
    chain = page.context["lineage"]
    assert [step["label"] for step in chain] == [
        f"trajectory {source.trace_id[:8]}", "failure wrong tool", f"task {task}", f"variant {made}",
    ]  # fmt: skip
    assert chain[2]["url"] == reverse("environments:task", args=["acme", "mail", task.number])


def test_what_is_made_of_an_attempt_at_a_variant_is_synthetic_too(task: Task, cast: Cast, build: Build) -> None:
    made, elsewhere = carried_out(submitted(task, cast)).tasks.earliest("number"), build.environment("elsewhere")
    found = []
    for tried in (task, made):
        attempt = build.trajectory(tried.prompt, "{", source="rollout", metadata={"state": tried.state})
        run = EvalRun.objects.create(
            project=cast.project,
            created_by=cast.trainer,
            version=build.version(),
            task_set=build.task_set(environment=elsewhere),
            split=Split.TRAIN,
        )
        Result.objects.create(run=run, task=tried, sample=0, seed=1, trajectory=attempt)
        right = {**tried.target, "arguments": {**tried.target["arguments"], "day": "monday"}}
        failure = decide(trajectory=attempt, actor=Actor(cast.reviewer), bucket="wrong_arguments", corrected=right)
        found.append(task_from(failure=failure, environment=task.environment, actor=Actor(cast.builder))[0])
    assert [each.is_synthetic for each in found] == [False, True]
    with pytest.raises(DatabaseError), transaction.atomic():
        Task.objects.filter(pk=found[1].pk).update(is_synthetic=False)


def test_a_variant_that_the_original_answer_passes_is_not_proved(task: Task, cast: Cast) -> None:
    version = task.environment.latest
    job = submitted(task, cast)
    version.verifier = {**version.verifier, "weights": {"tool": 1.0}}  # the arguments do not count
    variant = Task(
        project=task.project,
        environment=task.environment,
        generation=job,
        is_synthetic=True,
        prompt="Meet Ida on friday",
        target={"tool": "calendar.create_event", "arguments": {"person": "Ida", "day": "friday"}},
        state={"people": ["Ida"]},
    )
    proof, is_proved = prove(variant, version, recorded=None, is_failure=None)
    assert not is_proved
    assert "the original's answer" in [check["name"] for check in proof["checks"] if not check["passed"]]


def test_a_run_that_goes_on_makes_the_same(task: Task, cast: Cast) -> None:
    whole = [made.prompt for made in synthetic_variants.made(submitted(task, cast, count=4))]
    job = submitted(task, cast, count=4)
    first = next(seeded_tasks.parts(job, 2, NO_RUNNERS))
    seeded_tasks.keep(job, first)
    Generation.objects.filter(pk=job.pk).update(done=2, made=2)
    assert [made.prompt for made in carried_out(job).tasks.order_by("number")] == whole


def test_what_is_asked_already_or_named_held_out_is_not_made(task: Task, cast: Cast, build: Build) -> None:
    build.task(prompt="meet  IDA on Friday.", environment=task.environment)
    build.task(Split.HELD_OUT, prompt="Tell Ola hello", environment=task.environment)
    job = carried_out(submitted(task, cast, spec=Spec(("Bako",), {"Bako": PEOPLE}), count=20))
    assert {made.target["arguments"]["person"] for made in job.tasks.all()} == {"Eva", "Per"}
    assert (job.state, job.done) == (State.SUCCEEDED, 2)


def test_what_is_synthetic_stays_so(task: Task, cast: Cast) -> None:
    job = carried_out(submitted(task, cast))
    made = job.tasks.first()
    assert made is not None
    assert made.is_synthetic
    for change in ({"generation": None}, {"generation": submitted(task, cast)}):
        with pytest.raises(DatabaseError), transaction.atomic():
            Task.objects.filter(pk=made.pk).update(**change)
    with pytest.raises(DatabaseError), transaction.atomic():
        Generation.objects.filter(pk=job.pk).update(origin=None)
    with pytest.raises(Refused, match="variant itself"):
        submitted(made, cast)


def test_variants_are_frozen_beside_their_origin(task: Task, cast: Cast, build: Build) -> None:
    build.task(Split.HELD_OUT, environment=task.environment)
    carried_out(submitted(task, cast))
    chosen = list(task.environment.tasks.filter(is_proved=True))
    made = freeze(environment=task.environment, name="more", actor=Actor(cast.builder), tasks=chosen)
    assert made.members.filter(split=Split.TRAIN, task__generation__isnull=False).count() == 3


def test_nothing_is_made_of_an_unproved_task(task: Task, cast: Cast) -> None:
    Task.objects.filter(pk=task.pk).update(is_proved=False)
    with pytest.raises(Refused, match="not proved"):
        submitted(Task.objects.get(pk=task.pk), cast)


def test_from_the_page_and_by_the_api(
    task: Task, cast: Cast, sign_in: Callable[[User], Client], key: Callable[..., dict[str, str]], client: Client
) -> None:
    place = f"/p/{cast.project.slug}/environments/e/{task.environment.name}/tasks/{task.number}/"
    builder = sign_in(cast.builder)
    assert "Synthetic variants" in page_of(builder.get(place))
    with patch.object(synthetic_variants, "offered", side_effect=AssertionError("a viewer makes none")):
        assert "Synthetic variants" not in page_of(sign_in(cast.viewer).get(place))
    asked = {"key": str(uuid.uuid4()), "swap-0": "1", "values-0": "Ida\nOla", "count": "2", "seed": "4"}
    for _ in range(2):  # a double click makes one
        assert builder.post(f"{place}vary/", asked).status_code == 302
    job = Generation.objects.get(origin=task)
    assert (job.options["swap"], job.options["values"]) == (["Bako"], {"Bako": ["Ida", "Ola"]})
    carried_out(job)
    listed = page_of(builder.get(f"/p/{cast.project.slug}/environments/e/{task.environment.name}/?synthetic=only"))
    assert "Meet Ida on friday" in listed
    assert "Meet Bako on friday" not in listed
    made = job.tasks.earliest("pk")
    variant = page_of(
        builder.get(f"/p/{cast.project.slug}/environments/e/{made.environment.name}/tasks/{made.number}/")
    )
    assert "variant of <a" in variant
    headers = key("read", "build")
    api = f"/api/v1/environments/{task.environment.name}/tasks"
    found = client.get(f"{api}/{task.number}/entities", headers=headers).json()
    assert found == [{"text": "Bako", "kind": "name"}, {"text": "friday", "kind": "name"}]
    body = {"swap": ["friday"], "count": 2}
    refused = client.post(f"{api}/{task.number}/variants", body, content_type="application/json", headers=headers)
    assert (refused.status_code, "nothing can be drawn" in refused.json()["detail"]) == (422, True)
    body = {"swap": ["Bako"], "count": 2, "seed": 9}
    queued = client.post(f"{api}/{task.number}/variants", body, content_type="application/json", headers=headers)
    assert (queued.status_code, queued.json()["origin"]) == (202, task.number)
    synthetic = client.get(f"{api}?synthetic=true", headers=headers).json()["items"]
    assert {item["synthetic"] for item in synthetic} == {True}
    assert len(synthetic) == 2


def test_nothing_is_varied_where_somebody_elses_server_judges(
    task: Task, cast: Cast, sign_in: Callable[[User], Client]
) -> None:
    page = f"/p/acme/environments/e/{task.environment.name}/tasks/{task.number}/"
    assert "Make variants" in sign_in(cast.builder).get(page).content.decode()
    config = {"base_url": "http://gym-1:8000", "tools": [], "max_turns": 6}
    row = environment(
        project=cast.project, name="gym", actor=Actor(cast.admin), config=config, verifier={"kind": "nemo_gym"},
        terms=Terms("nemo_gym"),
    )  # fmt: skip
    Task.objects.filter(pk=task.pk).update(environment=row)
    task = Task.objects.get(pk=task.pk)
    assert synthetic_variants.offered(task) == []
    with pytest.raises(Refused, match="judges its own rows and no variants"):
        submitted(task, cast)
    page = f"/p/acme/environments/e/gym/tasks/{task.number}/"
    assert "Make variants" not in sign_in(cast.builder).get(page).content.decode()
