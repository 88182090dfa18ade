"""The red-green proof tells wrong from right on the task itself, both ways, and never scores what it cannot."""

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Scope, User
from flywheel.core import envs
from flywheel.core.envs.kinds import KINDS
from flywheel.core.envs.tool_call import ToolCallEnvironment
from flywheel.core.traces import Message, ToolCall, Trace, outward_acts, tooling
from flywheel.core.verifiers import NO_RUNNERS, Verdict
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, EnvironmentVersion, Split, Task, TaskSet
from flywheel.environments.proofs import cheats, proof_jobs
from flywheel.environments.proofs.red_green_proof import (
    CHEAT,
    COMMON,
    NONE_KNOWN,
    REPEATS,
    RIGHT_HERE,
    begun,
    common_wrong,
    failed_checks,
    prove,
    prove_again,
)
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.tasks import recorded_tasks
from flywheel.environments.tasks.bulk_tasks import tasks_from_all
from flywheel.environments.tasks.recorded_tasks import task_from
from flywheel.environments.versions import trials
from flywheel.environments.versions.environment_versions import environment_version
from flywheel.evals.models import EvalRun, Result
from flywheel.failures.labels.decisions import decide
from tests.conftest import TOOLS, Build, Cast
from tests.pages import page_of

RIGHT = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}
GOLD = Message("assistant", tooling.call_text("calendar.create_event", {"person": "Bako", "day": "friday"}))
WRONG = Message("assistant", tooling.call_text("calendar.create_event", {"person": "Bako", "day": "monday"}))

pytestmark = pytest.mark.django_db


@pytest.fixture
def task(build: Build) -> Task:
    return build.task(prompt="Meet Bako on friday", target=RIGHT, state={"people": ["Bako"]})


def names(checks: list[dict[str, Any]]) -> list[str]:
    return [check["name"] for check in checks]


def test_a_good_task_is_green_in_every_check(build: Build, task: Task) -> None:
    proof, is_proved = prove(task, task.environment.latest, recorded=WRONG, is_failure=True)
    assert is_proved
    assert names(proof["checks"]) == [
        "recorded failure",
        "corrected",
        "empty",
        "constant",
        "echo",
        "every tool at once",
        "leaked target",
        "cheat attempt",
        "a key twice",
        "renamed arguments",
        "twenty guesses",
        "and harm after it",
        "same every time",
    ]
    assert all(check["passed"] for check in proof["checks"])
    assert proof["checks"][-1]["shown"] == f"{REPEATS}/{REPEATS}"
    assert proof["verifier_digest"] == task.environment.latest.verifier_digest


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if not kind.runner])
def test_who_claims_the_verdict_gets_nothing_and_who_is_right_all(kind: str) -> None:
    generate = KINDS[kind].generate
    target = {"wanted": [{"type": "calls", "calls": [RIGHT]}]} if kind == "episode" else RIGHT
    made = list(generate(50, seed=5)) if generate else [envs.Task("t", "Meet Bako", target, {"people": ["Bako"]})]
    env = envs.build(kind, {"tools": TOOLS} if KINDS[kind].from_failures else {}, {"kind": kind})
    for task in made:
        for say, score in ((envs.always(CHEAT), 0.0), (partial(env.solve, task), 1.0)):
            said = Trace.from_messages("", envs.episode(env, task, say))
            assert env.verifier(task)(said, task.target).score == pytest.approx(score, abs=1e-9)


def test_a_failure_that_the_verifier_passes_is_no_failure(task: Task) -> None:
    task.proof, is_proved = prove(task, task.environment.latest, recorded=GOLD, is_failure=True)
    assert not is_proved
    (check,) = failed_checks(task)
    assert (check["name"], check["score"]) == ("recorded failure", 1.0)


def test_a_correction_that_the_verifier_fails_is_no_correction(task: Task) -> None:
    task.target = {"tool": "calendar.create_event", "arguments": {"person": "Nobody", "day": "friday"}}
    task.proof, is_proved = prove(task, task.environment.latest, recorded=WRONG, is_failure=True)
    assert not is_proved
    (check,) = failed_checks(task)
    assert check["name"] == "corrected"
    assert "there is no 'Nobody'" in check["reason"]


def test_a_recorded_success_must_pass(task: Task) -> None:
    assert prove(task, task.environment.latest, recorded=GOLD, is_failure=False)[1]
    task.proof, is_proved = prove(task, task.environment.latest, recorded=WRONG, is_failure=False)
    assert not is_proved
    assert names(failed_checks(task)) == ["recorded success"]


def test_a_probe_that_scores_high_fails_the_proof(cast: Cast, task: Task) -> None:
    """With all weight on form, any well-formed call would be worth training towards."""
    version = environment_version(
        environment=task.environment,
        actor=Actor(cast.builder),
        config={"tools": TOOLS},
        verifier={"kind": "tool_call", "weights": {"valid_json": 0.8, "exact": 0.2}},
    )
    task.proof, is_proved = prove(task, version, recorded=WRONG, is_failure=True)
    assert not is_proved
    assert names(failed_checks(task)) == ["constant", "renamed arguments"]


def test_a_verifier_that_raises_leaves_its_checks_unscored_and_red(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(outward_acts, "never_event", broken)
    task.proof, is_proved = prove(task, task.environment.latest, recorded=WRONG, is_failure=True)
    assert not is_proved
    assert names(failed_checks(task)) == names(task.proof["checks"])
    assert {check["score"] for check in task.proof["checks"]} == {None}
    assert "ZeroDivisionError" in task.proof["checks"][0]["reason"]


def test_where_no_cheat_can_be_made_the_proof_says_why(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("wanted")

    monkeypatch.setattr(cheats, "cheats", broken)
    task.proof, _ = prove(task, task.environment.latest, recorded=WRONG, is_failure=True)
    assert task.proof["missing"]["cheats"] == "there is no right answer to spoil: KeyError: 'wanted'"


def test_a_verifier_that_changes_its_mind_is_found(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ToolCallEnvironment._judge
    turns = iter(range(10_000))

    def moody(self: ToolCallEnvironment, *args: Any) -> Verdict:
        verdict = real(self, *args)
        return Verdict(verdict.score, f"{verdict.reason} {next(turns) % 5 == 0}", verdict.parts)

    monkeypatch.setattr(ToolCallEnvironment, "_judge", moody)
    task.proof, is_proved = prove(task, task.environment.latest, recorded=WRONG, is_failure=True)
    assert not is_proved
    assert names(failed_checks(task)) == ["same every time"]


@pytest.mark.parametrize("target", [{}, {"tool": "calendar.create_event"}, {"tool": 3, "arguments": None}])
def test_a_target_that_is_none_is_a_failed_check_and_no_crash(task: Task, target: Mapping[str, Any]) -> None:
    task.target = target
    task.proof, is_proved = prove(task, task.environment.latest, recorded=WRONG, is_failure=True)
    assert not is_proved
    assert "corrected" in names(failed_checks(task))


@pytest.mark.parametrize(
    "weights", [{"tool": 0.7, "arguments": 0.1, "exact": 0.2}, {"valid_json": 1 / 3, "exact": 2 / 3}]
)
def test_weights_that_do_not_add_up_exactly_still_let_the_right_answer_pass(
    cast: Cast, task: Task, weights: dict[str, float]
) -> None:
    version = environment_version(
        environment=task.environment,
        actor=Actor(cast.builder),
        config={"tools": TOOLS},
        verifier={"kind": "tool_call", "weights": weights},
    )
    proof, _ = prove(task, version, recorded=WRONG, is_failure=True)
    corrected = next(check for check in proof["checks"] if check["name"] == "corrected")
    assert corrected["passed"]


def test_a_new_environment_version_proves_every_task_again(cast: Cast, build: Build) -> None:
    environment = build.environment()
    row = build.trajectory(answer=WRONG.content, metadata={"state": {"people": ["Bako"]}})
    failure = decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_arguments", corrected=RIGHT)
    task, _ = task_from(failure=failure, environment=environment, actor=Actor(cast.builder))
    row.delete()
    without = TOOLS[1:]
    config = {"tools": without}
    environment_version(
        environment=environment, actor=Actor(cast.builder), config=config, verifier={"kind": "tool_call"}
    )
    task.refresh_from_db()
    assert (task.is_proved, task.proof["environment_version"]) == (False, "mail@2")
    config = {"tools": TOOLS[::-1]}
    environment_version(
        environment=environment, actor=Actor(cast.builder), config=config, verifier={"kind": "tool_call"}
    )
    task.refresh_from_db()
    assert (task.is_proved, task.proof["environment_version"]) == (True, "mail@3")
    assert task.proof["recorded"]["content"] == WRONG.content


def test_a_new_version_leaves_many_tasks_to_a_worker_and_they_wait_without_blame(
    cast: Cast,
    build: Build,
    sign_in: Callable[[User], Client],
    key: Callable[..., dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proof_jobs, "PROVED_AT_ONCE", 2)
    environment = build.environment()
    for split in (Split.TRAIN, Split.HELD_OUT, Split.HELD_OUT):
        made = build.task(split)
        made.proof, made.is_proved = prove(made, environment.latest, recorded=WRONG, is_failure=True)
        made.save()
    build.task(retired_at=timezone.now())
    version = make_version(environment, cast, {"exact": 1})
    assert environment.provings.get().state == "queued"
    assert {task.proof["recorded"]["content"] for task in environment.tasks.filter(retired_at=None)} == {WRONG.content}
    with pytest.raises(Refused, match="3 tasks wait for a worker to prove them under mail@2"):
        freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    client = sign_in(cast.viewer)
    pages = [reverse("environments:environment", args=["acme", "mail"])]
    pages.append(reverse("environments:task", args=["acme", "mail", made.number]))
    for page in pages:
        text = page_of(client.get(page))
        assert "waits for its proof</span>" in text
        assert "not proved</span>" not in text
    told = client.get("/api/v1/environments/mail/tasks", headers=key(Scope.READ)).json()["items"]
    assert {(task["is_proved"], task["awaits_proof"]) for task in told} == {(False, True)}
    assert len(proof_jobs.prove_some(environment, version, NO_RUNNERS)) == 3
    assert freeze(environment=environment, name="mail", actor=Actor(cast.builder)).members.count() == 3
    make_version(environment, cast, {"exact": 0.5, "tool": 0.5})
    monkeypatch.setattr(proof_jobs, "PROVED_AT_ONCE", 3)
    make_version(environment, cast, {"exact": 0.9, "tool": 0.1})
    assert not proof_jobs.waiting(environment, environment.latest).exists(), "few are proved at once"


def make_version(environment: Environment, cast: Cast, weights: dict[str, float]) -> EnvironmentVersion:
    config = {"tools": TOOLS}
    verifier = {"kind": "tool_call", "weights": weights}
    return environment_version(environment=environment, actor=Actor(cast.builder), config=config, verifier=verifier)


def test_the_page_says_which_check_failed(
    cast: Cast, build: Build, task: Task, sign_in: Callable[[User], Client]
) -> None:
    task.target = {"tool": "calendar.create_event", "arguments": {"person": "Nobody", "day": "friday"}}
    task.proof, task.is_proved = prove(task, task.environment.latest, recorded=WRONG, is_failure=True)
    task.save()
    url = reverse("environments:task", args=["acme", "mail", task.number])
    page = page_of(sign_in(cast.viewer).get(url))
    assert "The proof failed" in page
    assert "Check “corrected” wanted high and scored 0.90" in page


def test_the_proof_uses_the_very_verifier_of_evals(task: Task) -> None:
    version = task.environment.latest
    env = ToolCallEnvironment(version.config, version.verifier)
    from flywheel.environments.tasks.task_rows import core_task

    pure = core_task(task)
    trace = Trace.from_messages("t", [*env.reset(pure, 0), WRONG])
    proof, _ = prove(task, version, recorded=WRONG, is_failure=True)
    assert proof["checks"][0]["score"] == env.verifier(pure)(trace, pure.target).score


def test_the_most_common_wrong_answer_must_fail_unless_it_is_right_here(build: Build, task: Task) -> None:
    version, task.state = task.environment.latest, {}
    proof, _ = prove(task, version, recorded=WRONG, is_failure=True, common=WRONG)
    assert COMMON in names(proof["checks"])
    call = json.loads(GOLD.content)
    padded = {**call, "arguments": {**call["arguments"], "person": " Bako"}}
    for same in (call, {"arguments": call["arguments"], "tool": call["tool"]}, padded):
        right = Message("assistant", json.dumps(same, indent=2))
        proof, is_proved = prove(task, version, recorded=WRONG, is_failure=True, common=right)
        assert (is_proved, COMMON in names(proof["checks"])) == (True, False)
        assert proof["missing"] == {COMMON: RIGHT_HERE}


def test_what_the_verifier_does_not_look_at_makes_no_answer_wrong(cast: Cast, task: Task) -> None:
    part = {"name": "who", "type": "exact", "read": "last_call", "path": "arguments.person"}
    version = environment_version(
        environment=task.environment,
        actor=Actor(cast.builder),
        config={"tools": TOOLS},
        verifier={"kind": "rubric", "parts": [{**part, "target": "arguments.person"}, ONE_CALL]},
    )
    proof, is_proved = prove(task, version, recorded=None, is_failure=None, common=WRONG)
    assert is_proved
    assert COMMON not in names(proof["checks"])


ONE_CALL = {"name": "one_call", "type": "environment", "part": "valid_json", "required": True, "weight": 0}


def test_a_verifier_that_takes_the_last_of_twenty_guesses_is_not_proved(cast: Cast, task: Task) -> None:
    part = {"name": "who", "type": "exact", "read": "last_call", "path": "arguments.person"}
    version = environment_version(
        environment=task.environment,
        actor=Actor(cast.builder),
        config={"tools": TOOLS},
        verifier={"kind": "rubric", "parts": [{**part, "target": "arguments.person"}]},
    )
    task.proof, is_proved = prove(task, version, recorded=WRONG, is_failure=True)
    assert not is_proved
    assert "twenty guesses" in names(failed_checks(task))


LOOSE = {
    "kind": "rubric",
    "parts": [
        {"type": "regex", "read": "answer", "pattern": r'^\{"tool": "calendar.create_event", "arguments": \{"person"'}
    ],
}


def test_trying_a_verifier_warns_of_it_too(cast: Cast, build: Build) -> None:
    for made in (build.task(prompt=f"Meet Bako {number}", target=RIGHT) for number in range(2)):
        made.proof = begun(WRONG, True)
        made.save()
    trial = trials.submit(
        environment=made.environment, actor=Actor(cast.builder), verifier=LOOSE, tasks=[made.number], key=uuid.uuid4()
    )
    (shown,) = trials.reports(trial, NO_RUNNERS)
    (row,) = [row for row in shown["rows"] if row.get("warns")]
    assert (row["what"], row["passed"], row["score"]) == (COMMON, None, 1.0)
    assert WRONG.content in row["reason"]


@pytest.mark.parametrize(
    "verifier",
    [
        LOOSE,
        {"kind": "tool_call", "weights": {"executes": 1}},
    ],
)
def test_a_verifier_that_passes_what_is_commonly_wrong_is_warned_of_with_the_answer(
    cast: Cast, task: Task, sign_in: Callable[[User], Client], key: Callable[..., dict[str, str]], verifier: Any
) -> None:
    """It may leave an argument out on purpose; whether it does, only its maker knows."""
    config = {"tools": TOOLS}
    version = environment_version(
        environment=task.environment, actor=Actor(cast.builder), config=config, verifier=verifier
    )
    task.proof, task.is_proved = prove(task, version, recorded=None, is_failure=None, common=WRONG)
    assert task.is_proved
    task.save()
    (warning,) = task.proof["warnings"]
    assert (warning["name"], warning["wanted"], warning["score"], warning["passed"]) == (COMMON, "fails", 1.0, False)
    assert WRONG.content in warning["reason"]
    assert task.proof["missing"] == {}
    page = page_of(sign_in(cast.viewer).get(reverse("environments:task", args=["acme", "mail", task.number])))
    assert "The verifier passes the most common wrong answer.</b>" in page
    assert "! passes</span>" in page
    assert "! look</span>" in page
    (told,) = sign_in(cast.viewer).get("/api/v1/environments/mail/tasks", headers=key(Scope.READ)).json()["items"]
    assert told["proof"]["warnings"] == [warning]
    proof, _ = prove(task, version, recorded=None, is_failure=None, common=GOLD)
    assert (proof["warnings"], proof["missing"]) == ([], {COMMON: RIGHT_HERE})


def common(environment: Environment) -> Message | None:
    return common_wrong(environment, environment.latest)


def test_an_answer_is_common_when_two_recorded_failures_share_it(build: Build) -> None:
    tasks = [build.task() for _ in range(3)]
    for task, answer in zip(tasks, (WRONG, GOLD, WRONG), strict=True):
        task.proof = {"recorded": answer.to_json(), "is_failure": True, "checks": []}
        task.save()
    assert common(tasks[0].environment) == WRONG
    tasks[0].delete()
    assert common(tasks[1].environment) is None


@pytest.mark.parametrize("split", [Split.HELD_OUT, Split.SEALED, Split.SET_ASIDE])
def test_nothing_that_is_measured_tells_what_is_commonly_wrong(build: Build, split: str) -> None:
    for number in range(3):
        task = build.task(split if number else Split.TRAIN)
        task.proof = {"recorded": WRONG.to_json(), "is_failure": True, "checks": []}
        task.save()
    assert common(task.environment) is None


NATIVE = Message("assistant", "", (ToolCall("a", "calendar.create_event", {"person": "Bako", "day": "sunday"}),))


def attempted(build: Build, task_set: TaskSet, said: Message, split: str = Split.TRAIN, **fields: Any) -> None:
    """A wrong attempt of two samples at two tasks of the split."""
    blobs = fields.pop("blobs", None)
    run = EvalRun.objects.create(
        project=build.cast.project,
        created_by=build.cast.builder,
        version=build.version(),
        task_set=task_set,
        split=split,
        samples=2,
        verifier_digest=fields.pop("digest", task_set.environment_version.verifier_digest),
    )
    for number, member in enumerate(task_set.members.filter(split=split).order_by("pk")[: fields.pop("tasks", 2)]):
        for sample in range(2):
            row = build.trajectory(answer="", source="rollout")
            calls = tuple(replace(call, id=f"{number}-{sample}") for call in said.tool_calls)
            first = {"output": [replace(said, tool_calls=calls).to_json()]}
            row.steps.filter(kind="assistant").update(body=first, blobs=blobs)
            row.steps.create(span_id="s3", position=3, kind="assistant", body={"output": [GOLD.to_json()]})
            Result.objects.create(
                run=run, task=member.task, sample=sample, seed=sample, trajectory=row, **{"success": False, **fields}
            )


def test_rollouts_at_train_tasks_tell_what_is_commonly_wrong(build: Build) -> None:
    task_set = build.task_set(train=3)
    attempted(build, task_set, NATIVE)
    found = common(task_set.environment_version.environment)
    assert found is not None
    assert [(call.name, call.arguments) for call in found.tool_calls] == [
        (call.name, call.arguments) for call in NATIVE.tool_calls
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"split": Split.HELD_OUT},
        {"split": Split.SEALED},
        {"success": True},
        {"success": None},
        {"digest": "another verifier's"},
        {"tasks": 1},
        {"blobs": ["0" * 64]},
    ],
)
def test_nothing_else_does(build: Build, fields: dict[str, Any]) -> None:
    task_set = build.task_set(train=3, sealed=3)
    attempted(build, task_set, NATIVE, **fields)
    assert common(task_set.environment_version.environment) is None


def test_what_is_commonly_wrong_is_known_as_soon_as_two_say_it(
    cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_tasks, "split_in", lambda *_, **__: Split.TRAIN)
    environment = build.environment()
    made = []
    for number in range(3):
        row = build.trajectory(f"Meet Bako on friday {number}", WRONG.content, metadata={"state": {"people": ["Bako"]}})
        failure = decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_arguments", corrected=RIGHT)
        made.append(task_from(failure=failure, environment=environment, actor=Actor(cast.builder))[0])
    assert [COMMON in names(task.proof["checks"]) for task in made] == [False, True, True]
    assert made[0].proof["missing"] == {COMMON: NONE_KNOWN}


@pytest.mark.parametrize(("needed", "times"), [([], 1), (["sandbox"], 0)])
def test_what_is_commonly_wrong_is_looked_for_once_for_many_tasks_and_only_where_they_are_proved(
    needed: list[str], times: int, cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    monkeypatch.setattr(recorded_tasks, "common_wrong", lambda *about: looked.append(about))
    monkeypatch.setattr(proof_jobs, "needs", lambda *_: needed)
    for number in range(3):
        row = build.trajectory(f"Meet Bako on friday {number}", WRONG.content, metadata={"state": {"people": ["Bako"]}})
        decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_arguments", corrected=RIGHT)
    made = tasks_from_all(environment=build.environment(), actor=Actor(cast.builder))
    assert (len(made.made), made.unproved, len(looked)) == (3, 0 if times else 3, times)


def test_what_rollouts_say_changes_no_proof_that_was_made(cast: Cast, build: Build) -> None:
    environment = build.environment()
    tasks = [build.task(split, environment) for split in (Split.TRAIN, Split.TRAIN, Split.TRAIN, Split.HELD_OUT)]
    for task in tasks:
        prove_again_of(task)
        assert (task.is_proved, task.proof["missing"]) == (True, {COMMON: NONE_KNOWN})
    first = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    attempted(build, first, NATIVE)
    assert common(environment) is not None
    assert freeze(environment=environment, name="mail", actor=Actor(cast.builder)) == first
    for task in tasks:
        before = task.proof
        task.refresh_from_db()
        assert (task.is_proved, task.proof) == (True, before)


def prove_again_of(task: Task) -> None:
    task.proof = begun(None, None)
    prove_again(task, task.environment.latest)


def test_the_page_says_what_was_not_checked(cast: Cast, sign_in: Callable[[User], Client], task: Task) -> None:
    prove_again_of(task)
    url = reverse("environments:task", args=["acme", task.environment.name, task.number])
    page = page_of(sign_in(cast.builder).get(url))
    assert "no common wrong answer is known" in page
    assert "not checked" in page
