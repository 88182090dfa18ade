"""The end of `make turn`, once a candidate is approved: it is let out by steps, a worse one is taken back, and what was
mended comes back when the world changes.

The customers are new ones, who call `workplace-assistant@live` through the gateway. Which arm they meet, how long a
stage lasts and how it ends, the judge decides as in any other project.
"""

from collections.abc import Callable
from typing import Any

from flywheel.core.text.number_words import percent
from flywheel.promotions.models import Candidate, Ramp
from workers.programs.releases import story_releases
from workers.programs.releases.story_releases import Sessions
from workers.reference import story

WILD = 1.6
"""The temperature of the version that is worse on purpose."""
Say = Callable[[str], None]


def go_on(candidate: Candidate, endpoint: str, first: int, say: Say) -> dict[str, Any]:
    """Play it with customers from number `first` on; returns what the last line says of it: `ramp`, `taken_back` and
    `reopened`, each None where it did not come to that."""
    sessions = story_releases.customers_from(first)
    result: dict[str, Any] = {"ramp": None, "taken_back": None, "reopened": None}
    reason = "the gate calls it eligible, sealed tasks confirm it, and its suites passed (headless turn)"
    ramp = _let_out(story_releases.begin(candidate, reason), endpoint, sessions, say)
    result["ramp"] = story_releases.result_of(ramp)
    if ramp.state != Ramp.State.FINISHED:
        return result
    version = story_releases.at_temperature(candidate.version, WILD, note="livelier answers")
    worse = story_releases.put_forward(version, candidate.version_eval)
    say(f"somebody wants livelier answers: {worse.version}. {worse.report['decision']['words']}")
    against = "let us see what customers say of it, against the gate (headless turn)"
    ramp = _let_out(story_releases.begin(worse, against, override=True), endpoint, sessions, say)
    result["taken_back"] = story_releases.result_of(ramp)
    result["reopened"] = _change_world(candidate, endpoint, sessions, say)
    return result


def _let_out(ramp: Ramp, endpoint: str, sessions: Sessions, say: Say) -> Ramp:
    version = ramp.candidate.version
    shares = ", ".join(percent(stage.share / 10_000) for stage in ramp.rules.stages)
    say(f"{version} is let out by steps: {shares} of the sessions, and all of them at the end")
    with story_releases.application(ramp.agent.project, endpoint) as customers:
        ramp = story_releases.follow(ramp, customers, sessions)
    found = story_releases.result_of(ramp)
    count = found["sessions"]["live"] + found["sessions"]["candidate"]
    say(f"its ramp is {ramp.get_state_display()} after {count} judged sessions: {found['because']}")
    return ramp


def _change_world(candidate: Candidate, endpoint: str, sessions: Sessions, say: Say) -> dict[str, Any] | None:
    """The company's systems rename an argument, and the live version does not know."""
    (before, after), *_ = story.RENAMED.items()
    say(f"the world changes: the tools' argument {before!r} is now called {after!r}")
    project, agent = candidate.project, candidate.agent
    changed = (story.renamed(requests) for requests in sessions)
    with story_releases.application(project, endpoint, tools=story.tools_renamed()) as customers:
        found = story_releases.recurs(agent, customers, changed)
    if found is None:
        say("nothing came back")
        return None
    say(
        f"{found.bucket} is back: claimed in at most {percent(found.claim)} of the sessions, found in "
        f"{percent(found.failed)} of the last ones"
    )
    return story_releases.came_back(found)
