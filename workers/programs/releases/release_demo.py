"""`make demo`, once it is ready: the project `releases`, with a ramp that finished, one that was taken back, and one
that is under way and that a visitor may harm.

All three are played, one after the other, with customers who call through the gateway and the judge of every
installation. The last goes on as long as this process runs, until the visitor or the judge ends it.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from flywheel.system import demo_switch, env
from workers.programs.demo import NICENESS

if TYPE_CHECKING:
    from flywheel.accounts.models import Project
    from flywheel.agents.models import Agent, Version
    from flywheel.evals.models import EvalRun

PORT = 13
"""Of the server that can be harmed, above Flywheel's own: a version names it, so it stays the same."""
FIRST = range(40)
"""Customers whose failures the tasks are made of."""
HOT, COOL, WILD = 1.1, 0.2, 1.6
"""Temperatures: of the version that was live first, of the one that shows itself better, of the one that is worse."""
SAMPLES = 2
FIRST_STORY_S = 300.0
AT_ONCE, PAUSE_S, HARMED_PAUSE_S = 2, 4.0, 0.5
"""Customers of the ramp that is under way: more come while it is harmed, so that nobody has to wait."""


def main() -> None:
    os.nice(NICENESS)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    from flywheel.accounts.models import Project
    from flywheel.promotions.models import Candidate
    from workers.programs.releases.harmable_server import HarmableServer
    from workers.programs.story_playback import StoryFailed, wait_until
    from workers.reference.gateway_customers import Unanswered

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"flywheel: {time.monotonic() - started:5.1f} s  {text}", file=sys.stderr, flush=True)

    project = Project.objects.get(slug=demo_switch.PROJECT)
    endpoint = f"http://127.0.0.1:{env.port()}"
    with suppress(StoryFailed):  # two stories at once would slow down whoever reviews the first
        wait_until(Candidate.objects.filter(project__slug="demo").exists, FIRST_STORY_S, "the first story is over")
    try:
        cool = load(project, endpoint, say)
        server = HarmableServer(env.port() + PORT, cool)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        begin_last(project, cool, say)
    except (StoryFailed, Unanswered) as error:
        say(str(error))
    while True:
        try:
            serve(project, endpoint)
        except (Unanswered, OSError) as error:  # the demo goes on without them
            say(f"no customer was answered: {error}")
        time.sleep(PAUSE_S)


def load(project: "Project", endpoint: str, say: Callable[[str], None]) -> "Version":
    """Play the two ramps that are over, each unless it was; returns the version that the first one made live."""
    from workers.programs import story_playback
    from workers.programs.releases import story_releases

    story_playback.policy(project)
    agent = story_playback.agent_with_first_version(project, HOT)
    assert agent.live is not None
    first = agent.versions.get(number=1)
    story_playback.environment(project, agent)
    baseline = _measured(project, agent, first, endpoint)
    sessions = story_releases.customers_from(FIRST.stop + project.trajectories.count())
    cool = story_releases.at_temperature(first, COOL, note="less chance in its answers")
    for version, against, reason in (
        (cool, baseline, "it answers more often as it should"),
        (story_releases.at_temperature(cool, WILD, note="livelier answers"), None, "marketing wants livelier answers"),
    ):
        if agent.ramps.filter(candidate__version=version).exists():
            continue
        candidate = story_releases.put_forward(
            version, against or story_playback.evaluate(cool, baseline.task_set, SAMPLES), SAMPLES
        )
        ramp = story_releases.begin(candidate, reason, override=True)
        with story_releases.application(project, endpoint) as customers:
            ramp = story_releases.follow(ramp, customers, sessions)
        say(f"{ramp} of {version} is {ramp.get_state_display()}")
    return cool


def begin_last(project: "Project", cool: "Version", say: Callable[[str], None]) -> None:
    """Let the same weights out once more, behind the server that can be harmed: half of the sessions, until a person
    finishes it."""
    from flywheel.core.evidence.ramp.ramp_plan import Stage
    from workers.programs import story_playback
    from workers.programs.releases import harmable_server, story_releases

    address = f"http://127.0.0.1:{env.port() + PORT}/v1"
    version = story_releases.behind(cool, address, harmable_server.MODEL)
    agent = version.agent
    if agent.ramps.filter(candidate__version=version).exists():
        return
    task_set = project.task_sets.get()
    candidate = story_releases.put_forward(version, story_playback.evaluate(cool, task_set, SAMPLES), SAMPLES)
    plan = replace(story_releases.PLAN, stages=(Stage(5000, 1_000, 0),), finish="person")
    ramp = story_releases.begin(candidate, "the same weights behind a server of their own", plan, override=True)
    say(f"{ramp} of {version} is under way")


def serve(project: "Project", endpoint: str) -> None:
    """Let customers come as long as a ramp is under way."""
    from flywheel.promotions.models import Ramp
    from workers.programs.releases import story_releases
    from workers.reference.gateway_customers import come

    open_ = Ramp.objects.filter(agent__project=project, state__in=Ramp.OPEN)
    if not open_.exists():
        return
    was_harmed = demo_switch.is_on()
    sessions = story_releases.customers_from(FIRST.stop + project.trajectories.count())
    with story_releases.application(project, endpoint) as customers:
        come(
            customers,
            sessions,
            is_over=lambda: not open_.exists() or demo_switch.is_on() != was_harmed,
            at_once=AT_ONCE,
            pause_s=HARMED_PAUSE_S if was_harmed else PAUSE_S,
        )


def _measured(project: "Project", agent: "Agent", first: "Version", endpoint: str) -> "EvalRun":
    """The first version's eval on tasks of what it got wrong."""
    from workers.programs import story_playback

    if not project.task_sets.exists():
        now = datetime.now(UTC)
        story_playback.send_traffic(project, agent, endpoint, FIRST, begin=now - timedelta(days=2), end=now)
        story_playback.wait_for_detectors(project)
        story_playback.label_all(project)
        story_playback.make_tasks(project)
    return story_playback.evaluate(first, project.task_sets.get(), SAMPLES)


if __name__ == "__main__":
    main()
