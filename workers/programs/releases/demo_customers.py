"""The demo's customers go on: whenever another version goes live, it answers new ones, so that production shows it.

A few customers at a time, so that whoever looks sees the curve move; then they pause until the next promotion or roll
back. While a version is let out by steps they come all the time, until its ramp is over. They call `@live` through the
gateway, as the story's application does.
"""

import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from workers.programs.demo import THIS_WEEK
from workers.reference.gateway_customers import Unanswered, come

if TYPE_CHECKING:
    from flywheel.accounts.models import Project
    from flywheel.agents.models import Agent

EACH_TIME = 24
"""Customers that a version answers after it went live, with about three requests each."""
AT_ONCE = 2
PAUSE_S = 1.0
NEWEST = 100
"""Trajectories by which it is known who came last."""


def serve(project: "Project", endpoint: str, say: Callable[[str], None]) -> None:
    """Answer new customers after each move of what is live, and as long as a ramp is under way, for ever."""
    from workers.programs.story_playback import StoryFailed

    agent = _agent(project)
    while True:
        before, agent = agent.generation, _agent(project)
        try:
            if agent.generation != before and agent.live is not None:
                say(f"{agent.live} is live: {EACH_TIME} customers come")
                answer(agent, endpoint, EACH_TIME)
            elif _has_ramp(agent):
                answer(agent, endpoint)
        except (StoryFailed, Unanswered, OSError) as error:  # the demo goes on without them
            say(f"no customer was answered: {error}")
        time.sleep(PAUSE_S)


def answer(agent: "Agent", endpoint: str, most: int | None = None) -> None:
    """Let so many customers come, unless another version goes live meanwhile; or all who come during a ramp."""
    from workers.programs.releases import story_releases

    def is_over() -> bool:
        if _agent(agent.project).generation != agent.generation:
            return True
        return most is None and not _has_ramp(agent)

    sessions = islice(story_releases.customers_from(first_new(agent.project)), most)
    with story_releases.application(agent.project, endpoint) as customers:
        come(customers, sessions, is_over=is_over, at_once=AT_ONCE, pause_s=PAUSE_S)


def first_new(project: "Project") -> int:
    """Return the number of the first customer who has not come yet."""
    came = project.trajectories.filter(session_id__regex=r"^c[0-9]+-[0-9]+$").order_by("-pk")
    known = [int(session.rpartition("-")[2]) for session in came.values_list("session_id", flat=True)[:NEWEST]]
    return max([THIS_WEEK.stop - 1, *known]) + 1


def _agent(project: "Project") -> "Agent":
    return project.agents.select_related("project", "live").get()


def _has_ramp(agent: "Agent") -> bool:
    from flywheel.promotions.models import Ramp

    return agent.ramps.filter(state__in=Ramp.OPEN).exists()
