"""`make demo WORKBENCH=folder`: recorded runs of other people's agents, to look at, in the project `workbench`.

The runs are WorkBench's (Styles et al. 2024, arXiv 2405.00823, MIT) and no part of this repository, so they are read
from a folder on the user's machine. Which of them fail, where and why, is Flywheel's own reading of them
(`tests/workbench/README.md`); what would have been right is what the author of each task wanted.
"""

import json
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey, Membership, Project, Role
from flywheel.accounts.project_settings import api_keys
from flywheel.agents.registration import make_agent
from flywheel.core.envs.workplace.world_tools import DEFINITIONS
from flywheel.core.interop.foreign_tasks import task_of
from flywheel.environments.models import Environment
from flywheel.environments.versions.environment_versions import environment_version
from flywheel.failures.labels.decisions import decide
from flywheel.trajectories.models import Trajectory
from workers.programs import story_playback
from workers.programs.story_playback import StoryFailed

SLUG: Final = "workbench"
RUNS: Final = 60
LABELS: Final = Path(__file__).parents[2] / "tests/workbench/labels.jsonl"
AGENT, ENVIRONMENT, TASK_SET = "workbench-agent", "recorded-runs", "failed-runs"
ABOUT: Final = (
    "gpt-3.5 and mixtral-8x7B at an office's tools: runs recorded by WorkBench (Styles et al. 2024, arXiv 2405.00823; "
    "github.com/olly-styles/WorkBench, MIT licence). Labelled by a language model that read them; no person checked."
)
NOTHING: Final = {"avoid": [], "text": "There is nothing to change, so I left everything as it is."}
"""What is right where the task's author wants no call."""


def load(folder: Path, like: Project, endpoint: str, say: Callable[[str], None]) -> None:
    """Load the runs into a project with the members of another, once. Raises StoryFailed where the folder lacks
    them."""
    project, is_new = Project.objects.get_or_create(
        slug=SLUG, defaults={"name": "WorkBench runs (MIT)", "is_demo": True}
    )
    if is_new:
        Membership.objects.bulk_create(
            Membership(user=each.user, project=project, role=each.role) for each in like.memberships.all()
        )
    if project.task_sets.exists():
        return
    labels = [json.loads(line) for line in LABELS.read_text().splitlines()][:RUNS]
    lines = _lines(folder, {label["file"] for label in labels})
    if missing := [label["run"] for label in labels if label["run"] not in lines]:
        raise StoryFailed(f"{folder} has no run {missing[0]}; it must hold WorkBench's runs as ATIF, and its tasks")
    actor = Actor(story_playback.person(project, "workbench-reader", Role.TRAINER), "a reading of recorded runs")
    if not project.agents.filter(name=AGENT).exists():
        make_agent(project=project, name=AGENT, actor=actor, description=ABOUT)
    _send(project, endpoint, [lines[label["run"]][0] for label in labels])
    for label in labels:
        _label(project, label, lines[label["run"]][1], actor)
    place, _ = Environment.objects.get_or_create(
        project=project, name=ENVIRONMENT, defaults={"kind": "episode", "description": ABOUT, "held_out_share": 0.4}
    )
    config = {"tools": list(DEFINITIONS)}
    environment_version(environment=place, actor=Actor(actor.user), config=config, verifier={"kind": "episode"})
    story_playback.make_tasks(project, ENVIRONMENT, TASK_SET)
    failures = sum(label["verdict"] == "fail" for label in labels)
    made = project.failures.exclude(bucket="").exclude(tasks=None).count()
    say(f"the project {project.name} is there: {len(labels)} runs, {failures} failures, {made} of them tasks")


def _lines(folder: Path, files: set[str]) -> dict[str, tuple[bytes, dict[str, Any]]]:
    """Each run with what its task's author wanted, as a correction. Runs and tasks stand in the same order."""
    found = {}
    for name in sorted(files):
        runs, tasks = folder / name, folder / f"{name.partition('-')[0]}-tasks.jsonl"
        if not (runs.exists() and tasks.exists()):
            raise StoryFailed(f"{folder} has no {runs.name} with {tasks.name}")
        for run, task in zip(runs.read_bytes().splitlines(), tasks.read_bytes().splitlines(), strict=True):
            calls = task_of(json.loads(task), "workplace", DEFINITIONS).target["calls"]
            wanted = {"calls": calls, "order": "any"} if len(calls) > 1 else calls[0] if calls else NOTHING
            found[json.loads(run)["trajectory_id"]] = run, wanted
    return found


def _send(project: Project, endpoint: str, runs: list[bytes]) -> None:
    key, text = ApiKey.make(project, "WorkBench", ["ingest"], story_playback.oracle(project).user)
    headers = {"Authorization": f"Bearer {text}", "Content-Type": "application/x-ndjson"}
    asked = urllib.request.Request(f"{endpoint}/api/v1/trajectories?format=atif", b"\n".join(runs), headers)  # noqa: S310
    with urllib.request.urlopen(asked, timeout=120) as reply:  # noqa: S310 our own server
        reply.read()
    api_keys.revoke(key=key, actor=story_playback.oracle(project))  # what it has sent names it


def _label(project: Project, label: Mapping[str, Any], corrected: dict[str, Any], actor: Actor) -> None:
    row = Trajectory.objects.get(project=project, trace_id=label["run"])
    note = f"{label['why']} (By a language model that read the run.)"
    if label["verdict"] != "fail":
        decide(trajectory=row, actor=actor, note=note)
        return
    steps = list(row.steps.order_by("position").values_list("span_id", flat=True))
    step = next((each for each in steps if each.endswith(f"-{label['step']}")), "")
    decide(trajectory=row, actor=actor, bucket=label["bucket"], step=step, corrected=corrected, note=note)
