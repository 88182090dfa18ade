"""`make demo`: load the story into the project `demo` of a running Flywheel, once, up to where a visitor goes on.

Chapter one is over: few failures were labelled, and what was trained on them the gate refused. Since then the team has
labelled four times as many, which are frozen as the set's next version with the live version's baseline, and nobody has
trained on them yet. This week's traffic is in with the detectors' proposals, waiting for a reviewer.

A visitor waits for `load` alone, which ends with these proposals. While the first of them are reviewed, `finish` trains
chapter one's run and measures the baselines (`agent_demo`). Both go on where a start was ended in their middle.
"""

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from flywheel.core.text.number_words import percent
from flywheel.system import env

if TYPE_CHECKING:
    from flywheel.accounts.models import Project
    from flywheel.evals.models import EvalRun

EARLIER = range(50)
"""Customers whose failures chapter one was trained on."""
LABELLED = range(50, 190)
"""Customers whose failures the team has labelled since."""
THIS_WEEK = range(190, 240)
SAMPLES = 2
NICENESS = 10
"""Of what is loaded while a visitor looks around, who goes first."""


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    from flywheel.accounts.models import Project

    started = time.monotonic()

    def say(text: str) -> None:
        print(f"flywheel: {time.monotonic() - started:5.1f} s  {text}", file=sys.stderr, flush=True)

    load(Project.objects.get(slug="demo"), say)


def load(project: "Project", say: Callable[[str], None]) -> None:
    """Send all traffic, label what the team has labelled, and freeze both versions of the task set."""
    from flywheel.environments.models import Suite
    from workers.jobs.eval_runs import open_version
    from workers.programs import story_playback

    if Suite.objects.filter(agent__project=project).count() == story_playback.SUITES:
        return  # they are the last of it
    endpoint = f"http://{'127.0.0.1' if env.bind() in ('0.0.0.0', '::') else env.bind()}:{env.port()}"  # noqa: S104
    story_playback.policy(project)
    agent = story_playback.agent_with_first_version(project)
    story_playback.environment(project, agent)
    assert agent.live is not None
    now = agent.created_at  # the same in every start, since what was sent before this week is labelled
    monday, friday = now - timedelta(days=9), now - timedelta(days=3)
    weeks = [(EARLIER, now - timedelta(days=13), monday), (LABELLED, monday, friday), (THIS_WEEK, friday, now)]
    engine = open_version(agent.live)
    try:
        for customers, begin, end in weeks:
            story_playback.answer_customers(project, agent.live, engine, endpoint, customers, begin=begin, end=end)
    finally:
        engine.close()
    story_playback.wait_for_detectors(project)
    for label_until in (monday, friday):
        story_playback.label_all(project, before=label_until)
        task_set = story_playback.make_tasks(project)
        say(f"{task_set} is frozen")
    story_playback.guard(agent, task_set)
    waiting = project.trajectories.filter(label="", proposed_bucket__gt="").count()
    say(f"{waiting} proposals of this week wait for a reviewer")


def finish(project: "Project", say: Callable[[str], None]) -> None:
    """Train on the set's first version, refuse what came of it, and measure who was live then on the second."""
    from flywheel.environments.models import TaskSet
    from flywheel.promotions.live_version import reject
    from flywheel.promotions.models import Candidate
    from flywheel.training.models import TrainingRun
    from workers.programs import story_playback

    sets = TaskSet.objects.filter(project=project, name=story_playback.TASK_SET).order_by("version")
    few, many = sets.select_related("environment_version__environment__agent")[:2]
    agent = few.environment_version.environment.agent
    assert agent is not None
    first = agent.versions.get(number=1)
    run = TrainingRun.objects.filter(project=project, task_set=few).first()
    for task_set in (few, many):
        baseline = story_playback.evaluate(first, task_set, SAMPLES)
        say(f"{first} succeeds at {_success(baseline)} of {task_set}")
        story_playback.audit_reward(first, task_set)
        run = run or story_playback.start_training(first, few, "sft", {})
    assert run is not None
    candidate = story_playback.candidate_of(run)
    if candidate.state == Candidate.State.WAITING and candidate.verdict != Candidate.Verdict.ELIGIBLE:
        reject(
            candidate=candidate,
            actor=story_playback.approver(project),
            reason=f"not shown to be better: {few} has too few failures to learn from; label more first",
        )
    say(f"{run} learned from {few}; the gate said {candidate.get_verdict_display()}")


def _success(run: "EvalRun") -> str:
    return percent(run.summary["metrics"]["success"]["mean"])


if __name__ == "__main__":
    main()
