"""Regression suites, carried out by a real worker: from a candidate that is put forward to what its approver reads."""

from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.core.envs.policy_rollouts import ChatResponse
from flywheel.environments.task_sets.suite_definitions import put
from flywheel.promotions.candidacy import propose
from flywheel.promotions.live_version import make_first, promote
from flywheel.promotions.suite_standings import standings_of
from tests.conftest import Build, Cast
from tests.evals.conftest import served
from tests.evals.fake import say
from tests.evals.programs import Work, program_version, serve_program, use_tool
from tests.promotions.conftest import Evaluated, evaluated  # noqa: F401 a fixture
from tests.worker import Worker
from tests.workers.jobs import test_eval_runs
from tests.workers.jobs.test_eval_runs import (
    Server,
    server,  # noqa: F401 a fixture
)

__all__ = ["served"]


@pytest.mark.worker
@pytest.mark.django_db(transaction=True)
def test_a_worker_runs_the_suites_of_both_arms_and_the_gate_reads_them(
    cast: Cast,
    build: Build,
    worker: Worker,
    server: Server,  # noqa: F811
    evaluated: Evaluated,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.pause_s = 0.0
    agent, endpoint = build.agent(), server.endpoint
    live, better = (build.version(agent, endpoint=endpoint, system_prompt=prompt) for prompt in ("One.", "Two."))
    make_first(agent=agent, version=live, actor=Actor(cast.approver), reason="first")
    task_set, golden = build.task_set(train=2, held_out=12), build.task_set(train=1, held_out=6, name="golden")
    put(agent=agent, actor=Actor(cast.builder), name="golden", kind="safety", task_set=golden)
    last = golden.tasks.order_by("number").last()
    assert last is not None
    unknown = last.prompt.split()[1]

    def answer(person: str) -> ChatResponse:
        return say("Nobody" if person == unknown else person)

    monkeypatch.setattr(test_eval_runs, "say", answer)  # what the server, a thread of this process, says
    row = propose(
        version_eval=evaluated(better, task_set, passing=20),
        baseline_eval=evaluated(live, task_set, passing=4),
        actor=Actor(cast.trainer),
    )
    (stand,) = standings_of(row)
    assert stand.state == "unfinished"
    worker.wait_until(lambda: standings_of(row)[0].state != "unfinished", "both versions ran the suite")
    (stand,) = standings_of(row)
    words = "all 5 that passed before pass still, more attempts at each task would show more"
    assert (stand.state, stand.words) == ("cannot_tell", words)
    assert stand.finding is not None
    assert (stand.finding.tasks, stand.finding.before, stand.finding.passed) == (6, 5, 5)
    assert server.asked == 12
    promotion = promote(candidate=row, actor=Actor(cast.approver), reason="ok", generation=row.agent.generation)
    assert not promotion.against_the_gate
    assert [told["state"] for told in promotion.suites] == ["cannot_tell"]


@pytest.mark.worker
@pytest.mark.django_db(transaction=True)
def test_a_suite_runs_the_program_that_a_version_is(
    cast: Cast,
    build: Build,
    served: str,
    worker: Worker,
    evaluated: Evaluated,  # noqa: F811
) -> None:
    def does(work: Work) -> Any:
        person = work["input"].split()[1]
        use_tool(work, "calendar_create_event", {"person": person, "day": "friday"})
        return {"output": "Done.", "code": "b" * 12 if work["model"] == "new" else "a" * 12}

    with serve_program(does) as program:
        live, better = (
            program_version(build, url=program.url, code=code * 12, model=model, base_url="http://127.0.0.1:9/v1")
            for code, model in (("a", "old"), ("b", "new"))
        )
        make_first(agent=live.agent, version=live, actor=Actor(cast.approver), reason="first")
        task_set, golden = build.task_set(train=2, held_out=12), build.task_set(train=1, held_out=3, name="golden")
        put(agent=live.agent, actor=Actor(cast.builder), name="golden", kind="safety", task_set=golden)
        row = propose(
            version_eval=evaluated(better, task_set, passing=20),
            baseline_eval=evaluated(live, task_set, passing=4),
            actor=Actor(cast.trainer),
        )
        worker.wait_until(lambda: standings_of(row)[0].state != "unfinished", "both programs ran the suite")
    (stand,) = standings_of(row)
    assert (stand.state, stand.words) == ("passed", "all 3 that passed before pass still")
    assert {work["model"] for work in program.seen} == {"old", "new"}
