"""`make demo`: load the story into the project `demo` of a running Flywheel, once, up to where a visitor goes on.

Chapter one is over: few failures were labelled, and what was trained on them the gate refused. Since then the team has
labelled four times as many, which are frozen as the set's next version with the live version's baseline, and nobody has
trained on them yet. This week's traffic is in with the detectors' proposals, waiting for a reviewer.
"""

import os
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from flywheel.core.text.number_words import percent
from flywheel.system import env

if TYPE_CHECKING:
    from flywheel.evals.models import EvalRun

EARLIER = range(50)
"""Customers whose failures chapter one was trained on."""
LABELLED = range(50, 190)
"""Customers whose failures the team has labelled since."""
THIS_WEEK = range(190, 240)
SAMPLES = 2


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    from flywheel.accounts.models import Project
    from flywheel.evals.models import RewardAudit
    from flywheel.promotions.live_version import reject
    from flywheel.promotions.models import Candidate
    from workers.programs import story_playback

    started = time.monotonic()

    def say(text: str) -> None:
        print(f"flywheel: {time.monotonic() - started:5.1f} s  {text}", file=sys.stderr, flush=True)

    project = Project.objects.get(slug="demo")
    if RewardAudit.objects.filter(project=project, run__task_set__version=2).exclude(finished_at=None).exists():
        return  # that is the last of the steps below; a load that was ended before it begins again
    endpoint = f"http://{'127.0.0.1' if env.bind() in ('0.0.0.0', '::') else env.bind()}:{env.port()}"  # noqa: S104
    now = datetime.now(UTC)
    monday, friday = now - timedelta(days=9), now - timedelta(days=3)
    story_playback.policy(project)
    agent = story_playback.agent_with_first_version(project)
    story_playback.environment(project, agent)
    assert agent.live is not None
    story_playback.send_traffic(project, agent, endpoint, EARLIER, begin=now - timedelta(days=13), end=monday)
    story_playback.wait_for_detectors(project)
    story_playback.label_all(project, before=monday)
    first_set = story_playback.make_tasks(project)
    baseline = story_playback.evaluate(agent.live, first_set, SAMPLES)
    say(f"{first_set} is frozen; {agent.live} succeeds at {_success(baseline)} of it")
    story_playback.audit_reward(agent.live, first_set)
    run = story_playback.start_training(agent.live, first_set, "sft", {})
    story_playback.send_traffic(project, agent, endpoint, LABELLED, begin=monday, end=friday)
    story_playback.wait_for_detectors(project)
    story_playback.label_all(project, before=friday)
    task_set = story_playback.make_tasks(project)
    story_playback.guard(agent, task_set)
    story_playback.send_traffic(project, agent, endpoint, THIS_WEEK, begin=friday, end=now)
    candidate = story_playback.candidate_of(run)
    if candidate.state == Candidate.State.WAITING and candidate.verdict != Candidate.Verdict.ELIGIBLE:
        reject(
            candidate=candidate,
            actor=story_playback.approver(project),
            reason=f"not shown to be better: {first_set} has too few failures to learn from; label more first",
        )
    say(f"{run} learned from {first_set}; the gate said {candidate.get_verdict_display()}")
    baseline = story_playback.evaluate(agent.live, task_set, SAMPLES)
    say(f"{task_set} is frozen; {agent.live} succeeds at {_success(baseline)} of it")
    story_playback.audit_reward(agent.live, task_set)
    story_playback.wait_for_detectors(project)
    waiting = project.trajectories.filter(label="", proposed_bucket__gt="").count()
    say(f"{waiting} proposals of this week wait for a reviewer")


def _success(run: "EvalRun") -> str:
    return percent(run.summary["metrics"]["success"]["mean"])


if __name__ == "__main__":
    main()
