"""`make turn STORY=agent`: the wheel turned for a team's own agent, without any training.

traffic through the gateway → detect → label (by the oracle) → tasks of all failures → baseline, with the program as
harness → drafts of the prompt on train tasks → the best one on held-out tasks → gate → promote → the gateway answers
with it.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from flywheel.accounts.models import Project
from flywheel.environments.models import Split
from flywheel.promotions.live_version import promote
from workers.programs import agent_playback, story_playback
from workers.programs.agent_playback import HelpDesk
from workers.reference.helpdesk import scripted_model

CUSTOMERS = range(300)
FRESH = 60
"""Customers after them, asked before the fix and after it."""


def turn_agent(
    endpoint: str, desk: HelpDesk, say: Callable[[str], None], numbers: range = CUSTOMERS, fresh: int = FRESH
) -> dict[str, Any]:
    """Play the second story on the Flywheel of this process's environment, and return what `make turn` prints."""
    project = Project.objects.get(slug="default")
    story_playback.policy(project)
    agent = agent_playback.agent_with_first_version(project, desk)
    assert agent.live is not None
    live_before = agent.live
    agent_playback.environment(project, agent)
    say(f"{live_before} answers {len(numbers)} customers through the gateway")
    agent_playback.send_traffic(project, endpoint, numbers)
    count = project.trajectories.count()
    story_playback.wait_for_detectors(project)
    proposed = project.trajectories.exclude(proposed_bucket="").count()
    say(f"{count} trajectories are in; detectors propose a bucket for {proposed}")
    failures = [label for label in agent_playback.label_all(project, numbers) if label.is_failure]
    buckets = Counter(failure.bucket for failure in failures)
    say(f"the oracle found {len(failures)} failures of {len(buckets)} kinds")
    task_set = story_playback.make_tasks(project, agent_playback.ENVIRONMENT, agent_playback.TASK_SET)
    refused = [each for each in failures if not each.tasks.exists() and not each.also_tasks.exists()]
    tasks = len(failures) - len(refused)
    train, held_out = (task_set.members.filter(split=split).count() for split in (Split.TRAIN, Split.HELD_OUT))
    say(f"{tasks} of them became tasks; {task_set}: {train} to train on, {held_out} held out")
    newcomers = range(numbers.stop, numbers.stop + fresh)
    asked = agent_playback.send_traffic(project, endpoint, newcomers)
    right_before = agent_playback.right(project, asked)
    say(f"{live_before} gives {right_before} of {fresh} new customers what they want")
    trial = agent_playback.try_fix(live_before, task_set, agent_playback.commonest(failures))
    for each in agent_playback.tried(trial).drafts:
        say(f"draft {each.draft.name!r}: {_points(each.difference)} on train tasks")
    candidate = agent_playback.measured(trial)
    say(candidate.report["decision"]["words"])
    if candidate.verdict == "eligible":
        promote(
            candidate=candidate,
            actor=story_playback.approver(project),
            reason="the gate calls it eligible (headless turn)",
            generation=agent.generation,
        )
    agent.refresh_from_db()
    agent_playback.send_traffic(project, endpoint, newcomers)
    right_after = agent_playback.right(project, asked)
    say(f"{agent.live} is live, and gives {right_after} of them what they want")
    comparison = candidate.report["comparison"]
    difference = comparison["differences"]["success"]
    return {
        "model": f"{scripted_model.NAME} (scripted: rules that react to their prompt)",
        "trajectories": count,
        "failures": len(failures),
        "buckets": dict(buckets.most_common()),
        "tasks": {"made": tasks, "refused": len(refused), "train": train, "held_out": held_out},
        "baseline": _arm(comparison["baseline"]["success"]),
        "fixed": _arm(comparison["candidate"]["success"]),
        "difference": {"mean": difference["mean"], "ci95": [difference["low"], difference["high"]]},
        "verdict": candidate.verdict,
        "live_before": str(live_before),
        "live_after": str(agent.live),
        "answers": {"asked": fresh, "right_before": right_before, "right_after": right_after},
    }


def _points(estimate: Any) -> str:
    if estimate is None or estimate.mean is None:
        return "not measured"
    interval = "" if estimate.low is None else f" [{estimate.low:+.1%}, {estimate.high:+.1%}]"
    return f"{estimate.mean:+.1%}{interval}"


def _arm(estimate: dict[str, Any]) -> dict[str, Any]:
    return {"success": estimate["mean"], "ci95": [estimate["low"], estimate["high"]]}
