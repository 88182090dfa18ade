"""`make demo`: load the story into the project `demo` of a running Flywheel, once, up to where a person would start.

Last week's traffic is labelled and practised on: a task set, the live version's baseline, one short earlier run whose
comparison can be looked at. This week's traffic is in with the detectors' proposals, waiting for a reviewer.
"""

import os
import sys
import time
from datetime import UTC, datetime, timedelta

from flywheel.core.text.number_words import percent
from flywheel.system import env

LAST_WEEK = range(60)
THIS_WEEK = range(60, 130)
SAMPLES = 2
EARLIER_RUN = {"steps": 4, "learning_rate": 1e-4}
"""Too short to show anything: what an honest gate says of that is worth seeing."""


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    from flywheel.accounts.models import Project
    from flywheel.promotions.live_version import reject
    from flywheel.promotions.models import Candidate
    from workers.programs import story_playback

    started = time.monotonic()

    def say(text: str) -> None:
        print(f"flywheel: {time.monotonic() - started:5.1f} s  {text}", file=sys.stderr, flush=True)

    project = Project.objects.get(slug="demo")
    if project.candidates.exists():
        return
    endpoint = f"http://{'127.0.0.1' if env.bind() in ('0.0.0.0', '::') else env.bind()}:{env.port()}"  # noqa: S104
    now = datetime.now(UTC)
    monday = now - timedelta(days=5)
    story_playback.policy(project)
    agent = story_playback.agent_with_first_version(project)
    story_playback.environment(project, agent)
    assert agent.live is not None
    before = story_playback.send_traffic(
        project, agent, endpoint, LAST_WEEK, begin=now - timedelta(days=12), end=monday
    )
    story_playback.wait_for_detectors(project)
    say(f"{before} trajectories of last week are in and read by the detectors")
    story_playback.label_all(project, before=monday)
    task_set = story_playback.make_tasks(project)
    story_playback.guard(agent, task_set)
    baseline = story_playback.evaluate(agent.live, task_set, SAMPLES)
    success = percent(baseline.summary["metrics"]["success"]["mean"])
    say(f"{task_set} is frozen; {agent.live} succeeds at {success} of it")
    audit = story_playback.audit_reward(agent.live, task_set)
    say(f"{audit} of the verifier is {'green' if audit.is_green else 'not green'}")
    run = story_playback.start_training(agent.live, task_set, "sft", EARLIER_RUN)
    after = story_playback.send_traffic(project, agent, endpoint, THIS_WEEK, begin=monday, end=now)
    story_playback.wait_for_detectors(project)
    waiting = project.trajectories.filter(label="", proposed_bucket__gt="").count()
    say(f"{after} trajectories of this week are in; {waiting} proposals wait for a reviewer")
    candidate = story_playback.candidate_of(run)
    if candidate.state == Candidate.State.WAITING and candidate.verdict != Candidate.Verdict.ELIGIBLE:
        reject(
            candidate=candidate,
            actor=story_playback.approver(project),
            reason=f"{run} was far too short to show a difference; label this week's failures and train on those too",
        )
    say(f"an earlier run {run} is there to look at; the gate said {candidate.verdict}")


if __name__ == "__main__":
    main()
