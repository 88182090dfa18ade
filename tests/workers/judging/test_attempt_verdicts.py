"""A verifier in Python, all the way: proofs, trials, eval runs, training's rewards, and old rollouts judged again."""

import textwrap
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.core.envs import Task as CoreTask
from flywheel.core.envs import build as build_env
from flywheel.core.envs.policy_rollouts import Rollout
from flywheel.core.traces import Message
from flywheel.core.traces.tooling import call_text
from flywheel.core.verifiers import Runners, Verdict, one_by_one
from flywheel.edge.jobs import Job, State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, EnvironmentVersion, Proving, Task, Trial
from flywheel.environments.proofs import proof_jobs
from flywheel.environments.proofs.red_green_proof import prove
from flywheel.environments.task_sets import frozen_sets
from flywheel.environments.versions import environment_versions, trials
from flywheel.evals import run_rescores
from flywheel.evals.models import EvalRun, Rescore
from tests.conftest import TOOLS, Build
from tests.evals.fake import FakeEngine, QuietLease, finished, right, say, wrong
from tests.worker import Worker
from workers.jobs import eval_runs
from workers.judging import attempt_verdicts
from workers.sandbox.outcome import Status
from workers.sandbox.verdict import Scored
from workers.tasks import handler
from workers.trainers.attempts.rewards import Judge, Rewards

pytestmark = pytest.mark.django_db

SOURCE = """
import json

def verify(trace, target):
    try:
        said = json.loads(trace["answer"])
    except ValueError:
        return {"score": 0.0, "reason": "no JSON"}
    if not isinstance(said, dict) or "arguments" not in said:
        return 0.0
    same = said == {"tool": target["tool"], "arguments": target["arguments"]}
    return {"score": float(same), "reason": "the call" if same else "another call", "parts": {"json": 1.0}}
"""

CHEATS = ("a key twice", "renamed arguments", "twenty guesses", "and harm after it")


@pytest.fixture(autouse=True, scope="module")
def _needs_all_layers(sandbox: None) -> None: ...


def rubric(source: str = SOURCE, **fields: Any) -> dict[str, Any]:
    return {"kind": "rubric", "parts": [{"type": "python", "name": "code", "source": source, **fields}]}


def carry_out(job: Job) -> None:
    """As a worker does, in this very transaction."""
    claimed = type(job).claim(job.pk)
    assert claimed is not None
    lease = QuietLease(claimed.job, claimed.fence, 0.0)
    handler(job.label)(lease)
    job.refresh_from_db()
    if job.state == State.RUNNING:
        lease.finish(State.SUCCEEDED)
        job.refresh_from_db()


def version_of(environment: Environment, build: Build, verifier: dict[str, Any]) -> EnvironmentVersion:
    return environment_versions.environment_version(
        environment=environment,
        actor=Actor(build.cast.builder),
        config={"tools": TOOLS},
        verifier=verifier,
    )


def recorded(task: Task, is_failure: bool = True) -> Task:
    """As if it was made of a labelled trajectory."""
    answer = Message("assistant", call_text("calendar.create_event", {"person": "Nobody", "day": "friday"}))
    task.proof = {"recorded": answer.to_json(), "is_failure": is_failure, "checks": [], "environment_version": "old@0"}
    task.save()
    return task


def test_an_eval_run_is_judged_by_python_and_says_which_verifier_it_was(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = build.environment()
    version = version_of(environment, build, rubric())
    run = finished(build, monkeypatch, task_set=build.task_set(held_out=6))
    assert run.task_set.environment_version == version
    assert run.verifier_digest == version.verifier_digest
    scores = list(run.results.order_by().values_list("score", "cause", "reason").distinct())
    assert scores == [(1.0, "", "code: the call")]
    assert run.results.all()[0].parts["code.json"] == 1.0
    assert run.results.all()[0].parts["valid_json"] == 1.0, "the environment's own parts go on being measured"


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("def verify(trace, target):\n    return 1 / 0", "raised"),
        ("def verify(trace, target):\n    while True: pass", "timeout"),
        ("def verify(trace, target):\n    return len('x' * 10**10)", "memory"),
        ("def verify(trace, target):\n    return 7", "range"),
        ("def verify(trace, target):\n    return float('nan')", "nan"),
        ("def verify(trace, target):\n    return None", "unscored"),
        ("def verify(trace, target):\n    return open('/etc/passwd')", "raised"),
    ],
)
def test_what_gives_no_score_is_unscored_with_its_cause_and_never_zero(source: str, cause: str) -> None:
    env = build_env("tool_call", {"tools": TOOLS}, rubric(source), attempt_verdicts.RUNNERS)
    task = CoreTask("t", "Meet Bako", {"tool": "calendar.create_event", "arguments": {}})
    (verdict,) = attempt_verdicts.verdicts(env, [(task, [Message("user", "Meet Bako"), Message("assistant", "")])])
    assert (verdict.score, verdict.success, verdict.cause) == (None, None, cause)


def test_an_eval_run_with_a_broken_verifier_counts_its_attempts_as_unscored(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "def verify(trace, target):\n    return {'monday': 1.0}[target['arguments']['day']]"
    version_of(build.environment(), build, rubric(source))
    run = finished(build, monkeypatch, task_set=build.task_set(held_out=5))
    assert set(run.results.values_list("score", "success", "cause")) == {(None, None, "raised")}
    success = run.summary["metrics"]["success"]
    assert (success["mean"], success["n"], success["unscored"]) == (None, 0, 10)
    assert run.events.filter(level="warning", text="10 of 10 attempts are unscored: raised 10").exists()


def test_many_are_judged_at_once_in_their_order(build: Build) -> None:
    source = "def verify(trace, target):\n    return int(trace['answer']) / 100"
    env = build_env("tool_call", {"tools": TOOLS}, rubric(source), attempt_verdicts.RUNNERS)
    task = CoreTask("t", "count", {})
    attempts = [(task, [Message("assistant", str(number))]) for number in range(40)]
    assert [verdict.score for verdict in attempt_verdicts.verdicts(env, attempts)] == [n / 100 for n in range(40)]


def test_tasks_wait_unproved_until_a_worker_has_proved_them(build: Build) -> None:
    environment = build.environment()
    good, loose = recorded(build.task()), recorded(build.task())
    loose.target = {"tool": "calendar.create_event", "arguments": {"person": "Nobody", "day": "friday"}}
    loose.save()
    version = version_of(environment, build, rubric())
    good.refresh_from_db()
    assert not good.is_proved
    with pytest.raises(Refused, match="2 tasks wait for a worker to prove them under mail@2"):
        frozen_sets.freeze(environment=environment, name="set", actor=Actor(build.cast.builder))
    job = Proving.objects.get()
    assert proof_jobs.ask(environment, Actor(build.cast.builder)) == job, "one job is enough for all that waits"
    carry_out(job)
    good.refresh_from_db()
    loose.refresh_from_db()
    assert (job.state, job.done, job.total) == (State.SUCCEEDED, 2, 2)
    assert (good.is_proved, good.proof["environment_version"]) == (True, str(version))
    names = [check["name"] for check in good.proof["checks"]]
    assert names == [
        *("recorded failure", "corrected", "empty", "constant", "echo", "every tool at once"),
        *("leaked target", "cheat attempt", *CHEATS, "most common wrong answer", "same every time"),
    ]
    assert not loose.is_proved, "what was recorded as a failure passes"


def test_a_proof_asks_several_at_once_and_tells_them_in_their_order(build: Build) -> None:
    task = recorded(build.task())
    version = version_of(task.environment, build, rubric())
    now, most, lock = Counter[str](), Counter[str](), threading.Lock()

    def python(source: str, trace: Mapping[str, Any], target: Any) -> Verdict:
        with lock:
            now["asked"] += 1
            most["asked"] = max(most["asked"], now["asked"])
        time.sleep(0.01)
        with lock:
            now["asked"] -= 1
        return Verdict(float(trace["answer"] == call_text(target["tool"], target["arguments"])), trace["answer"])

    def proof(runners: Runners) -> tuple[dict[str, Any], bool]:
        return prove(task, version, recorded=Message("assistant", "no"), is_failure=True, runners=runners)

    asked = replace(attempt_verdicts.RUNNERS, python=python)
    found = proof(asked)
    assert found[1], [check for check in found[0]["checks"] if not check["passed"]]
    assert most["asked"] > 1
    most.clear()
    assert proof(replace(asked, each=one_by_one)) == found
    assert most["asked"] == 1


def test_the_guides_example_is_proved_and_its_red_variant_is_not(build: Build) -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/builder.md").read_text()
    steps = guide.partition("### A Python verifier: made, proved, audited and used in an eval run")[2].partition(
        "### "
    )[0]
    source = textwrap.dedent(steps.partition("```python\n")[2].partition("   ```")[0])
    task = recorded(build.task())
    for text, is_proved in ((source, True), (source[: source.rindex("return")] + "return 1.0\n", False)):
        version_of(task.environment, build, rubric(text))
        carry_out(Proving.objects.latest("pk"))
        task.refresh_from_db()
        assert task.is_proved is is_proved, task.proof["checks"]


@pytest.mark.parametrize(
    ("source", "red"),
    [
        ("def verify(trace, target):\n    return 1.0", {"recorded failure", "empty", "cheat attempt", "leaked target"}),
        (
            "def verify(trace, target):\n    return float(target['arguments']['person'] in trace['answer'])",
            {"leaked target"},
        ),
        (
            "import time\ndef verify(trace, target):\n    return {'score': 1.0, 'reason': str(time.monotonic_ns())}",
            {"same every time"},
        ),
    ],
)
def test_a_verifier_that_can_be_gamed_is_not_proved(build: Build, source: str, red: set[str]) -> None:
    task = recorded(build.task())
    version_of(task.environment, build, rubric(source))
    carry_out(Proving.objects.get())
    task.refresh_from_db()
    assert not task.is_proved
    assert red <= {check["name"] for check in task.proof["checks"] if not check["passed"]}


def test_where_a_layer_is_missing_everything_says_which(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Scored(Status.REFUSED, None, "a layer is missing: landlock: no such syscall. It needs Linux 5.13.")
    monkeypatch.setattr("workers.judging.attempt_verdicts.score", lambda *_: refused)
    task = recorded(build.task())
    version_of(task.environment, build, rubric())
    run = finished(build, monkeypatch, task_set=build.task_set(held_out=2))
    assert set(run.results.values_list("score", "cause")) == {(None, "refused")}
    assert "landlock" in run.results.all()[0].error
    carry_out(Proving.objects.get())
    task.refresh_from_db()
    assert not task.is_proved
    assert {check["cause"] for check in task.proof["checks"]} - {""} == {"refused"}, "harm is seen without it"


def test_a_trial_shows_the_proof_and_old_rollouts_before_anything_is_saved(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished(build, monkeypatch, answer=wrong, task_set=build.task_set(held_out=2))
    task = recorded(run.results.all()[0].task)
    lenient = "def verify(trace, target):\n    return float('calendar' in trace['answer'])"
    trial = trials.submit(
        environment=task.environment,
        verifier=rubric(lenient),
        actor=Actor(build.cast.builder),
        key=uuid.uuid4(),
        tasks=[task.number],
        rollouts=2,
    )
    carry_out(trial)
    assert trial.state == State.SUCCEEDED
    (shown,) = trial.report["tasks"]
    rows = {row["what"]: row for row in shown["rows"]}
    assert not shown["is_proved"]
    assert (rows["recorded failure"]["score"], rows["recorded failure"]["passed"]) == (1.0, False)
    rollouts = [row for row in shown["rows"] if row["trace_id"]]
    assert [(row["before"], row["score"], row["parts"]["code"]) for row in rollouts] == [(0.4, 1.0, 1.0)] * 2
    assert task.environment.versions.count() == 1
    assert run.results.filter(score=1.0).count() == 0


def test_old_rollouts_are_judged_again_and_keep_their_scores(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Any) -> Any:
        return right(request) if "1" in request.messages[-1].content else say("Nobody", error="")

    run = finished(build, monkeypatch, answer=answer, task_set=build.task_set(held_out=12))
    before = list(run.results.order_by("pk").values_list("score", "success", "reason"))
    same = _rescored(run, run.task_set.environment_version, build)
    assert run_rescores.changes(same).same == 24
    strict = "def verify(trace, target):\n    return 1.0 - float(trace['answer'].count('Nobody') == 0)"
    version = version_of(run.task_set.environment_version.environment, build, rubric(strict))
    other = _rescored(run, version, build)
    found = run_rescores.changes(other)
    passed = run.results.filter(success=True).count()
    assert 0 < passed < 24
    assert (found.n, found.to_fail, found.to_pass, found.same) == (24, passed, 24 - passed, 0)
    assert found.before.mean == pytest.approx(passed / 24)
    assert found.after.mean == pytest.approx(1 - passed / 24)
    assert other.verifier_digest == version.verifier_digest != run.verifier_digest
    assert list(run.results.order_by("pk").values_list("score", "success", "reason")) == before
    assert {row.success is row.result.success for row in run_rescores.ordered(other)} == {False}


def test_what_was_not_answered_stays_unscored_whoever_judges(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Any) -> Any:
        return say("x", error="too long") if "1" in request.messages[-1].content else right(request)

    run = finished(build, monkeypatch, answer=answer, task_set=build.task_set(held_out=12))
    unanswered = run.results.filter(cause="not_answered").count()
    assert 0 < unanswered < 24
    job = _rescored(run, run.task_set.environment_version, build)
    assert job.scores.filter(score=None, cause="not_answered").count() == unanswered
    assert run_rescores.changes(job).same == 24


def _rescored(run: EvalRun, version: EnvironmentVersion, build: Build) -> Rescore:
    job, _ = run_rescores.submit(run=run, version=version, actor=Actor(build.cast.builder), key=uuid.uuid4())
    carry_out(job)
    assert (job.state, job.done) == (State.SUCCEEDED, run.results.count())
    return job


def test_rewards_are_the_verifiers_and_what_it_cannot_score_has_none() -> None:
    source = "def verify(trace, target):\n    return {'a': 0.25, 'b': 1.0}[trace['answer']]"
    parts = [
        {"type": "python", "name": "code", "source": source, "weight": 3},
        {"type": "regex", "name": "short", "pattern": "..?", "must": "match"},
    ]
    env = build_env("tool_call", {"tools": TOOLS}, {"kind": "rubric", "parts": parts}, attempt_verdicts.RUNNERS)
    monkey = CoreTask("t", "Meet Bako", {"tool": "calendar.create_event", "arguments": {}})
    env.solve = lambda *_: Message("assistant", "b")  # type: ignore[method-assign]
    judge = Judge(env)
    worth = Rewards(judge, [monkey], 1)
    found = judge.verdicts(
        [Rollout(monkey, 0, 1, [Message("user", monkey.prompt), Message("assistant", text)]) for text in "abc"]
    )
    values = {part: [worth.value(verdict, part) for verdict in found] for part in worth.weights}
    assert values["code"] == [0.25, 1.0, None]
    assert values["short"] == [1.0, 1.0, None], "no part of an unscored attempt is a reward"
    assert all(value[2] is None for value in values.values())
    assert judge.unscored(found) == pytest.approx(1 / 3)
    assert worth.total(found[0]) == pytest.approx((3 * 0.25 + 1) / 4)


@pytest.mark.worker
@pytest.mark.django_db(transaction=True)
def test_a_real_worker_proves_tries_and_judges_again(
    worker: Worker, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run_here(build, monkeypatch)
    task = recorded(run.results.all()[0].task)
    environment = task.environment
    trial = trials.submit(
        environment=environment,
        verifier=rubric(),
        actor=Actor(build.cast.builder),
        key=uuid.uuid4(),
        tasks=[task.number],
    )
    worker.finish(trial)
    assert trial.report["tasks"][0]["is_proved"], trial.report
    version = version_of(environment, build, rubric())
    worker.finish(Proving.objects.get())
    task.refresh_from_db()
    assert task.is_proved, task.proof
    job, _ = run_rescores.submit(run=run, version=version, actor=Actor(build.cast.builder), key=uuid.uuid4())
    worker.finish(job)
    assert (job.state, run_rescores.changes(job).n) == (State.SUCCEEDED, 8)
    assert Trial.objects.count() == 1


def _run_here(build: Build, monkeypatch: pytest.MonkeyPatch) -> EvalRun:
    """An eval run carried out in this process, before the worker sees it."""
    with monkeypatch.context() as patched:
        patched.setattr("flywheel.edge.jobs.Job.nudge", lambda _: None)
        patched.setattr(eval_runs, "open_version", lambda _: FakeEngine(right))
        return finished(build, patched, task_set=build.task_set(held_out=4))
