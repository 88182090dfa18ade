"""`make demo`, once it is ready: finish the first story (`demo.finish`), and load the second one into the project
`agent`, up to where a person would start.

Some conversations are labelled and practised on, the live version has its baseline, and a few wait with the detectors'
proposals. The agent and its scripted model answer as long as this process runs, so that evals and fixes can be tried,
and the first story's customers come again whenever another version goes live (`releases.demo_customers`). With a
folder of WorkBench's runs these are loaded after it (`workbench_demo`).
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flywheel.core.text.number_words import percent
from flywheel.system import env
from workers.programs.demo import NICENESS

if TYPE_CHECKING:
    from flywheel.accounts.models import Project
    from workers.programs.agent_playback import HelpDesk

LABELLED = range(70)
WAITING = range(70, 100)
PORTS = (11, 12)
"""Of the agent and of its model, above Flywheel's own: versions name them, so they stay the same."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers.programs.agent_demo")
    parser.add_argument("--workbench", type=Path, help="a folder with WorkBench's runs, to load some of them too")
    folder = parser.parse_args().workbench
    os.nice(NICENESS)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    from flywheel.accounts.models import Project
    from workers.programs import agent_playback, demo, story_playback, workbench_demo
    from workers.programs.releases import demo_customers

    started = time.monotonic()

    def say(text: str) -> None:
        print(f"flywheel: {time.monotonic() - started:5.1f} s  {text}", file=sys.stderr, flush=True)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    first, project = Project.objects.get(slug="demo"), Project.objects.get(slug="agent")
    with agent_playback.open_desk([env.port() + more for more in PORTS]) as desk:
        endpoint = f"http://127.0.0.1:{env.port()}"
        try:
            demo.finish(first, say)
            if not project.task_sets.exists():
                load(project, desk, endpoint, say)
            if folder is None:
                say("WorkBench's recorded runs are left out: make demo WORKBENCH=folder loads 60 of them")
            else:
                workbench_demo.load(folder, project, endpoint, say)
        except story_playback.StoryFailed as error:
            say(str(error))
        demo_customers.serve(first, endpoint, say)


def load(project: "Project", desk: "HelpDesk", endpoint: str, say: Callable[[str], None]) -> None:
    """Play the story up to the baseline, and some traffic beyond."""
    from workers.programs import agent_playback, story_playback

    story_playback.policy(project)
    agent = agent_playback.agent_with_first_version(project, desk)
    assert agent.live is not None
    agent_playback.environment(project, agent)
    if not project.trajectories.exists():  # or a start before this one was ended after it
        agent_playback.send_traffic(project, endpoint, LABELLED)
    story_playback.wait_for_detectors(project)
    labels = agent_playback.label_all(project, LABELLED)
    task_set = story_playback.make_tasks(project, agent_playback.ENVIRONMENT, agent_playback.TASK_SET)
    agent_playback.send_traffic(project, endpoint, WAITING)
    baseline = story_playback.evaluate(agent.live, task_set, agent_playback.SAMPLES)
    success = percent(baseline.summary["metrics"]["success"]["mean"])
    failures = sum(label.is_failure for label in labels)
    say(f"the project {project.name} is there: {failures} failures labelled, {agent.live} succeeds at {success}")


if __name__ == "__main__":
    main()
