"""`make turn`: one whole turn of the wheel, headless, in a data directory of its own; `STORY=agent` plays the second
story (`agent_turn`).

ingest → detect → label (by the story's oracle, recorded as such) → tasks → baseline eval → train → held-out comparison
→ gate → approve by steps → a ramp over the gateway → live → a worse version, taken back → the world changes, and a
bucket comes back (`releases.turn_ending`). A real supervisor runs web, worker and PostgreSQL; this process is only
their client. Progress goes to stderr; the last line of stdout is one JSON object.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flywheel.core import recipes
from flywheel.system import env

if TYPE_CHECKING:
    from flywheel.agents.models import Agent, Version
    from flywheel.environments.models import TaskSet
    from flywheel.promotions.models import Candidate

CUSTOMERS = range(260)
BEFORE, LATER = range(60), range(60, 260)
"""The same customers in two weeks, for a story that goes on: SFT learns from the first, and what it has made practises
the tasks of the second, which are more. What it was trained on it knows by heart, and a task that it always solves
teaches nothing."""
STEPS = 200
REINFORCED = {"steps": 160, "learning_rate": 3e-4, "max_completion_length": 64, "dynamic_sampling": True}
"""Settings of what may come after it, as far as the algorithm has them; the others are the form's."""
READY = "Flywheel is ready"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make turn")
    parser.add_argument("story", nargs="?", choices=["assistant", "agent"], default="assistant")
    reinforced = [name for name, row in recipes.ALGORITHMS.items() if row.is_reinforced]
    parser.add_argument("--then", choices=reinforced, help="reinforce what SFT has made, in the first story")
    given = parser.parse_args()
    if given.then and given.story != "assistant":
        parser.error("--then: the agent's model is scripted and cannot be trained")
    turn = partial(turn_wheel, then=given.then) if given.story == "assistant" else turn_agent
    started = time.monotonic()
    home = env.home() / "turn"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    with flywheel_in(home) as endpoint:
        result = turn(endpoint, started)
    print(json.dumps({**result, "seconds": round(time.monotonic() - started, 1)}), flush=True)


def turn_wheel(endpoint: str, started: float, *, then: str | None = None) -> dict[str, Any]:
    """Play the story on the Flywheel of this process's environment, and return what `make turn` prints. `then` is an
    algorithm by which the version that SFT has made goes on to learn."""
    _set_up_django()
    from flywheel.accounts.models import Project
    from workers.programs import story_playback
    from workers.programs.releases import turn_ending

    say = _narrator(started)
    project = Project.objects.get(slug="default")
    story_playback.policy(project)
    agent = story_playback.agent_with_first_version(project)
    live_before = str(agent.live)
    story_playback.environment(project, agent)
    now = datetime.now(UTC)
    count, failures = _serve(agent, endpoint, BEFORE if then else CUSTOMERS, now - timedelta(days=7), say)
    task_set = story_playback.make_tasks(project)
    train, held_out = _sizes(task_set, say)
    for suite in story_playback.guard(agent, task_set):
        say(f"{suite} guards {agent}: {suite.words}")
    assert agent.live is not None
    candidate = _train(agent.live, task_set, "sft", {"steps": STEPS}, say)
    is_confirmed, ending = _is_confirmed(candidate, say), {}
    if is_confirmed and then:
        _promote(candidate)
    elif is_confirmed:
        ending = turn_ending.go_on(candidate, endpoint, CUSTOMERS.stop, say)
    agent.refresh_from_db()
    say(f"{agent.live} is live")
    result = {
        "trajectories": count,
        "failures": failures,
        "tasks": {"train": train, "held_out": held_out},
        **_compared(candidate),
        "live_before": live_before,
        "live_after": str(agent.live),
        **({} if then else {"ramp": None, "taken_back": None, "reopened": None} | ending),
    }
    if then:
        began = time.monotonic()
        more, more_failures = _serve(agent, endpoint, LATER, now, say)
        later = story_playback.make_tasks(project, name="workplace-later", only_new=True)
        train, held_out = _sizes(later, say)
        known = recipes.defaults(then)
        settings = {name: value for name, value in REINFORCED.items() if name in known}
        learnt = _train(candidate.version, later, then, settings, say)
        # Sealed tasks are opened against what is live, and what SFT has made of one week need not be.
        (_is_confirmed if agent.live == candidate.version else _passes)(learnt, say)
        result["reinforced"] = {
            "by": then,
            "trajectories": more,
            "failures": more_failures,
            "tasks": {"train": train, "held_out": held_out},
            **_compared(learnt),
            "seconds": round(time.monotonic() - began, 1),
        }
    return result


def _serve(
    agent: "Agent", endpoint: str, customers: range, begin: datetime, say: Callable[[str], None]
) -> tuple[int, int]:
    """Let what is live answer these customers and the oracle label it. Counts trajectories and failures."""
    from workers.programs import story_playback

    project = agent.project
    say(f"{agent.live} answers {len(customers)} customers")
    count = story_playback.send_traffic(project, agent, endpoint, customers, begin=begin, end=datetime.now(UTC))
    story_playback.wait_for_detectors(project)
    proposed = project.trajectories.filter(label="").exclude(proposed_bucket="").count()
    say(f"{count} trajectories are in; detectors propose a bucket for {proposed}")
    failures = sum(label.is_failure for label in story_playback.label_all(project))
    say(f"the oracle found {failures} failures")
    return count, failures


def _sizes(task_set: "TaskSet", say: Callable[[str], None]) -> tuple[int, int]:
    """Say how many tasks a set has. Counts those to train on and the held-out ones."""
    from flywheel.environments.models import Split

    train, held_out, sealed = (
        task_set.members.filter(split=split).count() for split in (Split.TRAIN, Split.HELD_OUT, Split.SEALED)
    )
    say(f"{task_set}: {train} tasks to train on, {held_out} held out, {sealed} sealed")
    return train, held_out


def turn_agent(endpoint: str, started: float) -> dict[str, Any]:
    """Play the second story there."""
    _set_up_django()
    from workers.programs import agent_playback, agent_turn

    with agent_playback.open_desk() as desk:
        return agent_turn.turn_agent(endpoint, desk, _narrator(started))


def _set_up_django() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "flywheel.settings"
    import django

    django.setup()


def _narrator(started: float) -> Callable[[str], None]:
    """Return what says on stderr how far it is, and when."""

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", file=sys.stderr, flush=True)

    return say


def _train(
    base: "Version", task_set: "TaskSet", algorithm: str, settings: dict[str, Any], say: Callable[[str], None]
) -> "Candidate":
    """The candidate that training makes of a version, once this one and its reward were measured."""
    from workers.programs import story_playback

    baseline = story_playback.evaluate(base, task_set)
    say(f"{base} succeeds at {_percent(baseline.summary['metrics']['success'])}")
    audit = story_playback.audit_reward(base, task_set)
    say(f"the oracle agrees with the verifier on {_percent(audit.result['agreement'])} of outputs")
    return story_playback.candidate_of(story_playback.start_training(base, task_set, algorithm, settings))


def _is_confirmed(candidate: "Candidate", say: Callable[[str], None]) -> bool:
    """Say how the candidate compares, and whether the gate, its suites and the sealed tasks all let it through."""
    from workers.programs import story_playback

    is_passed = _passes(candidate, say)
    final = story_playback.confirm(candidate)
    if final:
        say(f"sealed tasks: {final.words}")
    return is_passed and (final is None or final.is_passed)


def _promote(candidate: "Candidate") -> None:
    """At once, for a version that is only a step to the next."""
    from flywheel.promotions.live_version import promote
    from workers.programs import story_playback

    promote(
        candidate=candidate,
        actor=story_playback.approver(candidate.project),
        reason="the gate calls it eligible, sealed tasks confirm it, and its suites passed (headless turn)",
        generation=candidate.agent.generation,
    )


def _passes(candidate: "Candidate", say: Callable[[str], None]) -> bool:
    """Say how the candidate compares, and whether the gate and its suites let it through."""
    from workers.programs import story_playback

    report = candidate.report
    say(f"{candidate.version} succeeds at {_percent(report['comparison']['candidate']['success'])}")
    for name, estimate in report["familiarity"]["candidate"].items():
        say(f"  {name}: {_percent(estimate)}; before {_percent(report['familiarity']['baseline'][name])}")
    say(report["decision"]["words"])
    stands = story_playback.stands(candidate)
    for stand in stands:
        say(f"suite {stand.suite} {stand.label}: {stand.words}")
    return candidate.verdict == "eligible" and all(stand.is_passed for stand in stands)


@contextmanager
def flywheel_in(home: Path) -> Iterator[str]:
    """A Flywheel of its own on a free port, stopped at the end; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name in ("DATABASE_URL", "CELERY_BROKER_URL", "FLYWHEEL_BIND", "FLYWHEEL_HTTPS"):
        os.environ.pop(name, None)
    os.environ |= {"FLYWHEEL_HOME": str(home), "FLYWHEEL_PORT": str(port)}
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "flywheel.server.supervisor"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert supervisor.stdout is not None
        if not any(line.startswith(READY) for line in supervisor.stdout):
            sys.exit("flywheel: the server did not start; what it said stands above")
        from flywheel.system import postgres

        server = postgres.running(home / "postgres")
        assert server is not None
        os.environ["DATABASE_URL"] = server.url
        yield f"http://127.0.0.1:{port}"
    finally:
        supervisor.terminate()
        supervisor.wait(60)


def _percent(estimate: dict[str, Any]) -> str:
    if estimate["mean"] is None:
        return f"– ({estimate['reason'] or 'nothing scored'})"
    interval = "" if estimate["low"] is None else f" [{estimate['low']:.1%}, {estimate['high']:.1%}]"
    return f"{estimate['mean']:.1%}{interval} (n {estimate['n']})"


def _compared(candidate: "Candidate") -> dict[str, Any]:
    comparison = candidate.report["comparison"]
    difference = comparison["differences"]["success"]
    return {
        "baseline": _arm(comparison["baseline"]["success"]),
        "tuned": _arm(comparison["candidate"]["success"]),
        "difference": {"mean": difference["mean"], "ci95": [difference["low"], difference["high"]]},
        "verdict": candidate.verdict,
    }


def _arm(estimate: dict[str, Any]) -> dict[str, Any]:
    return {"success": estimate["mean"], "ci95": [estimate["low"], estimate["high"]]}


if __name__ == "__main__":
    main()
