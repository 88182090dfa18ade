"""Environments that make their own tasks: out of a seed, once, proved, and played over several turns."""

import json
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.core import envs
from flywheel.core.envs.kinds import KINDS
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.core.envs.workplace.request_templates import HELD_OUT
from flywheel.core.envs.workplace.world_tools import TOOLS
from flywheel.core.verifiers import NO_RUNNERS
from flywheel.edge.jobs import Lease, State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, Generation, Split, Task, TaskSet
from flywheel.environments.proofs.red_green_proof import COMMON, SEVERAL_TURNS
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.tasks import seeded_tasks
from flywheel.environments.tasks.bulk_tasks import without_task
from flywheel.environments.tasks.recorded_tasks import task_from
from flywheel.environments.tasks.task_rows import core_task
from flywheel.environments.versions.environment_terms import Terms
from flywheel.environments.versions.environment_versions import environment
from flywheel.evals.models import EvalRun
from flywheel.evals.runs.submission import RunSettings, submit
from flywheel.failures.labels.decisions import decide, tools_of
from flywheel.training.datasets.dataset_builder import build as build_dataset
from flywheel.training.datasets.dataset_builder import draft, open_rows
from tests.conftest import Build, Cast
from tests.evals.fake import finished
from tests.worker import Worker
from workers.jobs import eval_runs
from workers.jobs.task_generation import make_tasks

pytestmark = pytest.mark.django_db(transaction=True)
SignIn = Callable[[User], Client]


def made(cast: Cast, kind: str = "workplace", name: str = "", **fields: Any) -> Environment:
    fields = {"config": {}, "verifier": {"kind": kind}} | fields
    terms = Terms(kind, reserved_slices=KINDS[kind].reserved)
    return environment(project=cast.project, name=name or kind, actor=Actor(cast.builder), terms=terms, **fields)


def asked(cast: Cast, row: Environment, count: int = 12, seed: int = 1, **options: float) -> Generation:
    return seeded_tasks.submit(
        environment=row, actor=Actor(cast.builder), count=count, seed=seed, options=options, key=uuid.uuid4()
    )


def work(job: Generation) -> Generation:
    lease = Generation.claim(job.pk)
    assert isinstance(lease, Lease)
    with lease:
        make_tasks(lease)
    job.refresh_from_db()
    return job


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.generate])
def test_tasks_are_made_once_each_with_a_green_proof(cast: Cast, kind: str) -> None:
    row = made(cast, kind)
    job = work(asked(cast, row, 24))
    assert (job.state, job.done, job.made) == (State.SUCCEEDED, 24, 24)
    tasks = list(row.tasks.order_by("number"))
    assert [task.number for task in tasks] == list(range(1, 25))
    assert [task for task in tasks if not task.is_proved] == []
    assert {check["name"] for check in tasks[0].proof["checks"]} >= {"corrected", "empty", "same every time"}
    assert not any("recorded" in check["name"] for check in tasks[0].proof["checks"])
    assert tasks[0].proof["missing"] == {COMMON: SEVERAL_TURNS}
    assert {task.generation for task in tasks} == {job}
    again = work(asked(cast, row, 26))
    assert (again.done, again.made, row.tasks.count()) == (26, 2, 26)
    assert AuditEntry.objects.filter(action="environments.generate").count() == 2


def test_reserved_templates_are_never_trained_on_and_a_world_stays_in_one_split(cast: Cast) -> None:
    row = made(cast)
    work(asked(cast, row, 60))
    assert not row.tasks.filter(split=Split.TRAIN, slice__in=HELD_OUT).exists()
    assert row.tasks.filter(split=Split.HELD_OUT, slice__in=HELD_OUT).exists()
    splits: dict[str, set[bool]] = {}
    for cluster, split in row.tasks.values_list("cluster", "split"):
        splits.setdefault(cluster, set()).add(split == Split.HELD_OUT)
    assert all(len(found) == 1 for found in splits.values())


def test_many_tasks_of_either_kind_can_be_frozen(cast: Cast) -> None:
    """Openings of games and requests of templates repeat; what they want does not."""
    for kind in ("tictactoe", "workplace"):
        row = made(cast, kind, name=f"many-{kind}")
        job = asked(cast, row, 300)
        pure = KINDS[kind].generate
        assert pure is not None
        tasks = [seeded_tasks._task(job, each) for each in pure(300, seed=1)]
        for task in tasks:
            task.is_proved, task.proof = True, {"environment_version": str(row.latest)}
        kept = seeded_tasks.keep(job, tasks)
        assert kept > 280
        assert len({task.prompt for task in tasks}) < 300 or kind == "tictactoe"
        assert seeded_tasks.keep(job, [seeded_tasks._task(job, each) for each in pure(300, seed=1)]) == 0
        task_set = freeze(environment=row, name=f"many-{kind}", actor=Actor(cast.builder))
        assert task_set.members.count() > 200


def test_who_takes_over_goes_on_where_the_last_one_stood(cast: Cast) -> None:
    row = made(cast, "tictactoe")
    job = asked(cast, row, 15, low=0.2, high=0.4)
    lease = Generation.claim(job.pk)
    assert isinstance(lease, Lease)
    with lease:
        parts = seeded_tasks.parts(job, 10, NO_RUNNERS)
        with lease.guard():
            lease.update(done=10, made=seeded_tasks.keep(job, next(parts)))
        lease.finish(State.FAILED)
    job.refresh_from_db()
    job.resume(Actor(cast.builder))
    job = work(Generation.objects.get(pk=job.pk))
    assert (job.done, job.made, row.tasks.count()) == (15, 15, 15)
    assert all(0.2 <= task.state["random_share"] <= 0.4 for task in row.tasks.all())


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"count": 0}, "count: 0 is not from 1"),
        ({"count": 2001}, "count: 2001"),
        ({"seed": -1}, "seed: -1"),
        ({"luck": 1.0}, "options.luck: there is no such option; expected one of low, high"),
        ({"low": 0.9, "high": 0.1}, "from 0 to 1, not from 0.9 to 0.1"),
    ],
)
def test_what_cannot_be_made_is_told(cast: Cast, build: Build, wanted: dict[str, Any], told: str) -> None:
    with pytest.raises(Refused, match=told):
        asked(cast, made(cast, "tictactoe"), **wanted)
    with pytest.raises(Refused, match="made of labelled failures"):
        asked(cast, build.environment())
    assert not Generation.objects.exists()


def test_failures_become_no_tasks_of_an_environment_that_makes_its_own(cast: Cast, build: Build) -> None:
    row = made(cast)
    trajectory = build.trajectory()
    corrected = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}
    failure = decide(trajectory=trajectory, actor=Actor(cast.reviewer), bucket="wrong_tool", corrected=corrected)
    with pytest.raises(Refused, match="workplace makes its own tasks"):
        task_from(failure=failure, environment=row, actor=Actor(cast.builder))
    assert not without_task(row).exists()


class Solves:
    """An engine that does what the task's target asks for, and in every third episode nothing."""

    def __init__(self, task_set: TaskSet) -> None:
        version = task_set.environment_version
        self.env = envs.build(version.environment.kind, version.config, version.verifier)
        self.tasks = {task.prompt: core_task(task) for task in task_set.tasks.all()}

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        return [self.answer(request) for request in requests]

    def answer(self, request: ChatRequest) -> ChatResponse:
        task = self.tasks[request.messages[1].content]
        assert len(request.tools) == len(self.env.tools)
        if int(task.id.removeprefix("t-")) % 3 == 0:
            return ChatResponse(text="I would rather not.")
        said = self.env.solve(task, request.messages)
        return ChatResponse(text=said.content, tool_calls=said.tool_calls)

    def close(self) -> None: ...


@pytest.fixture
def evaluated(cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch) -> EvalRun:
    """A finished eval of the train split by a policy that is right two times of three."""
    row = made(cast)
    work(asked(cast, row, 30))
    task_set = freeze(environment=row, name="work", actor=Actor(cast.builder))
    run, _ = submit(
        actor=Actor(cast.builder),
        key=uuid.uuid4(),
        version=build.version(),
        task_set=task_set,
        split=Split.TRAIN,
        settings=RunSettings(samples=1),
    )
    monkeypatch.setattr(eval_runs, "open_version", lambda _: Solves(task_set))
    lease = EvalRun.claim(run.pk)
    assert isinstance(lease, Lease)
    with lease:
        eval_runs.evaluate(lease)
    run.refresh_from_db()
    return run


def test_an_eval_plays_whole_episodes_and_stores_each_as_a_trajectory(evaluated: EvalRun) -> None:
    assert evaluated.state == State.SUCCEEDED
    for result in evaluated.results.select_related("task", "trajectory"):
        assert result.success == (result.task.number % 3 != 0)
        assert result.trajectory is not None
        calls = len(result.task.target["calls"])
        assert result.trajectory.step_count == (2 * calls + 3 if result.success else 3)
        assert {tool["name"] for tool in tools_of(result.trajectory)} == set(TOOLS), "those that it was asked with"


def test_who_talks_until_nothing_fits_fails_and_is_not_left_out(
    cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ramble(request: ChatRequest) -> ChatResponse:
        if len(request.messages) > 5:
            return ChatResponse(error="the model takes 512 tokens in all", is_too_long=True)
        return ChatResponse(text="I wonder.", tokens_out=90, finish_reason="stop")

    row = made(cast, "tictactoe")
    work(asked(cast, row, 12))
    task_set = freeze(environment=row, name="games", actor=Actor(cast.builder))
    run = finished(build, monkeypatch, ramble, task_set=task_set, split=Split.TRAIN, samples=1)
    success = run.summary["metrics"]["success"]
    assert (success["mean"], success["unscored"]) == (0.0, 0)
    for result in run.results.select_related("trajectory"):
        assert result.reason.startswith("broken off: the model takes 512 tokens in all; not finished")
        assert result.trajectory is not None
        assert result.trajectory.metadata["ended"] == "broken off: the model takes 512 tokens in all"
        assert (result.trajectory.outcome, result.trajectory.error_count) == ("failed", 0)


def test_a_game_offers_none_of_its_versions_tools(cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    row = made(cast, "tictactoe")
    work(asked(cast, row, 12))
    version = build.version()
    assert version.tools
    run = finished(
        build,
        monkeypatch,
        lambda _: ChatResponse(text="I would rather not."),
        task_set=freeze(environment=row, name="games", actor=Actor(cast.builder)),
        version=version,
        split=Split.TRAIN,
        samples=1,
    )
    rollouts = [result.trajectory for result in run.results.select_related("trajectory__version")]
    assert rollouts
    assert [tools_of(rollout) for rollout in rollouts if rollout] == [[]] * len(rollouts)


def test_right_episodes_are_demonstrations_turn_by_turn(cast: Cast, evaluated: EvalRun) -> None:
    dataset = build_dataset(
        kind="sft", name="work", task_set=evaluated.task_set, actor=Actor(cast.trainer), rollouts=evaluated
    )
    with open_rows(dataset) as file:
        rows = [json.loads(line) for line in file]
    tasks = {str(task): task for task in evaluated.task_set.tasks.all()}
    assert {row["task_id"] for row in rows} == {
        str(member.task) for member in evaluated.task_set.members.filter(split=Split.TRAIN).select_related("task")
    }
    for name, task in tasks.items():
        mine = [row for row in rows if row["task_id"] == name]
        assert len(mine) in (0, len(task.target["calls"]) + 1)
        for place, row in enumerate(mine):
            assert row["origin"] == "generated"
            assert len(row["prompt"]) == 2 + 2 * place
            assert row["completion"][0]["role"] == "assistant"
        if mine:
            assert mine[-1]["completion"][0]["content"] == "Done."
    pairs = draft(kind="pairs", task_set=evaluated.task_set, rollouts=evaluated).rows
    assert len(pairs) == evaluated.results.filter(success=False).count() > 0
    assert {pair["rejected"][0]["content"] for pair in pairs} == {"I would rather not."}


def test_a_builder_makes_an_environment_and_its_tasks_by_clicks(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    create = reverse("environments:create", args=["acme"])
    page = client.get(f"{create}?kind=tictactoe").content.decode()
    assert "Whole games against an opponent of known skill" in page
    assert client.get(f"{create}?kind=chess").status_code == 404
    asked_for = {"name": "games", "held_out_share": "0.5", "reserved_slices": ""}
    assert client.post(f"{create}?kind=tictactoe", asked_for).status_code == 302
    row = Environment.objects.get(name="games")
    assert (row.kind, row.latest.config) == ("tictactoe", {})
    url = reverse("environments:generate", args=["acme", "games"])
    key = str(uuid.uuid4())
    wanted = {"count": "5", "seed": "3", "low": "0", "high": "0", "begun": "0.5", "key": key}
    for _ in range(2):
        assert client.post(url, wanted).status_code == 302
    job = Generation.objects.get()
    assert (job.count, job.seed, job.options) == (5, 3, {"low": 0.0, "high": 0.0, "begun": 0.5})
    live = reverse("environments:generation_live", args=["acme", job.pk])
    assert "waiting for a worker" in client.get(live).content.decode()
    wrong = client.post(url, wanted | {"count": "0", "key": str(uuid.uuid4())})
    assert wrong.status_code == 422
    assert "greater than or equal to 1" in wrong.content.decode()
    wrong = client.post(url, wanted | {"low": "2", "key": str(uuid.uuid4())})
    assert (wrong.status_code, "from 0 to 1, not from 2.0" in wrong.content.decode()) == (422, True)
    work(job)
    assert client.get(live).status_code == 286
    page = client.get(reverse("environments:environment", args=["acme", "games"])).content.decode()
    assert "5 made" in page
    assert "synthetic" in page
    task = Task.objects.order_by("pk").first()
    assert task is not None
    shown = client.get(reverse("environments:task", args=["acme", "games", task.number])).content.decode()
    assert "generated from seed 3" in shown
    version = reverse("environments:make_version", args=["acme", "games"])
    told = client.post(version, {"config": '{"max_turns": 2}', "verifier": '{"kind": "tictactoe"}'})
    assert (told.status_code, "max_turns: 2 is not" in told.content.decode()) == (422, True)
    assert client.post(version, {"config": "[]", "verifier": "{"}).status_code == 422
    assert client.post(version, {"config": '{"max_turns": 9}', "verifier": '{"kind": "tictactoe"}'}).status_code == 302
    assert row.latest.config == {"max_turns": 9}


def test_one_that_is_stopped_can_go_on(cast: Cast, sign_in: SignIn) -> None:
    client, job = sign_in(cast.builder), asked(cast, made(cast, "tictactoe"), 5)
    for verb, state in (("cancel", State.CANCELLED), ("resume", State.QUEUED)):
        assert client.post(reverse(f"environments:{verb}_generation", args=["acme", job.pk])).status_code == 302
        job.refresh_from_db()
        assert job.state == state
    assert client.post(reverse("environments:resume_generation", args=["acme", job.pk])).status_code == 302
    assert (
        sign_in(cast.viewer).post(reverse("environments:cancel_generation", args=["acme", job.pk])).status_code == 403
    )


def test_a_program_does_the_same(cast: Cast, client: Client, key: Callable[..., dict[str, str]]) -> None:
    headers = key("build", "read")
    post = partial(client.post, content_type="application/json", headers=headers)
    answer = post("/api/v1/environments", {"name": "office", "kind": "workplace"})
    assert (answer.status_code, answer.json()["kind"]) == (201, "workplace")
    answer = post("/api/v1/environments", {"name": "chess", "kind": "chess"})
    assert (answer.status_code, "kind: 'chess' is unknown" in answer.json()["detail"]) == (422, True)
    answer = post("/api/v1/environments/office/tasks/generate", {"count": 4, "seed": 2})
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    work(Generation.objects.get())
    told = client.get(f"/api/v1/generations/{answer.json()['id']}", headers=headers).json()
    assert (told["state"], told["made"]) == ("succeeded", 4)
    tasks = client.get("/api/v1/environments/office/tasks", headers=headers).json()["items"]
    assert {task["generation"] for task in tasks} == {told["id"]}
    assert post(f"/api/v1/generations/{told['id']}/cancel", {}).status_code == 409
    answer = post("/api/v1/environments/office/versions", {"config": {"max_turns": 1}})
    assert (answer.status_code, "max_turns: 1" in answer.json()["detail"]) == (422, True)
    assert post("/api/v1/environments/office/tasks/generate", {"count": 4, "options": {"x": 1}}).status_code == 422


@pytest.mark.worker
def test_a_real_worker_makes_them(start_worker: Callable[..., Worker], cast: Cast) -> None:
    job = asked(cast, made(cast, "tictactoe"), 3)
    worker = start_worker()
    worker.finish(job)
    assert (job.state, job.made) == (State.SUCCEEDED, 3)
