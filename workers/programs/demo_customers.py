"""The demo's customers go on: whenever another version goes live, it answers new ones, so that production shows it.

A few customers at a time, so that whoever looks sees the curve move; then they pause until the next promotion or roll
back. What they get is the live version's own answers, as in the rest of the story.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from flywheel.core.envs.policy_rollouts import EngineError
from workers.programs.demo import THIS_WEEK

if TYPE_CHECKING:
    from flywheel.accounts.models import Project
    from flywheel.agents.models import Agent

EACH_TIME = 24
"""Customers that a version answers after it went live, with about three requests each."""
AT_ONCE = 2
PAUSE_S = 1.0


def serve(project: "Project", endpoint: str, say: Callable[[str], None]) -> None:
    """Answer new customers after each move of what is live, for ever."""
    from workers.programs.story_playback import StoryFailed

    agent = project.agents.select_related("live").get()
    while True:
        before, agent = agent.generation, _now(agent)
        if agent.generation != before and agent.live is not None:
            say(f"{agent.live} is live: {EACH_TIME} customers come")
            try:
                answer(project, agent, endpoint)
            except (StoryFailed, EngineError, OSError) as error:  # the demo goes on without them
                say(f"no customer was answered: {error}")
        time.sleep(PAUSE_S)


def answer(project: "Project", agent: "Agent", endpoint: str) -> None:
    """Let the live version answer as many customers as come, unless another goes live meanwhile."""
    from workers.jobs.eval_runs import open_version
    from workers.programs import story_playback

    assert agent.live is not None
    first = first_new(project)
    engine = open_version(agent.live)
    try:
        for start in range(first, first + EACH_TIME, AT_ONCE):
            now = datetime.now(UTC)
            story_playback.answer_customers(
                project,
                agent.live,
                engine,
                endpoint,
                range(start, start + AT_ONCE),
                begin=now - timedelta(seconds=PAUSE_S),
                end=now,
            )
            time.sleep(PAUSE_S)
            if _now(agent).generation != agent.generation:
                return
    finally:
        engine.close()


def first_new(project: "Project") -> int:
    """Return the number of the first customer who has not come yet."""
    last = (
        project.trajectories.filter(session_id__regex=r"^c[0-9]+-[0-9]+$")
        .order_by("-session_id")
        .values_list("session_id")[:1]
    )
    known = [int(session.rpartition("-")[2]) for (session,) in last]
    return max([THIS_WEEK.stop - 1, *known]) + 1


def _now(agent: "Agent") -> "Agent":
    return type(agent).objects.select_related("live__agent", "live__weights", "live__adapter").get(pk=agent.pk)
