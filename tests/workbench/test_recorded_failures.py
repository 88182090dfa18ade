"""Every labelled failure of the recorded runs, with a perfect correction, becomes a proved task, by HTTP.

The runs are not in the repository; where they are missing nothing is tried.
"""

import json
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.core.envs.workplace.world_tools import DEFINITIONS
from flywheel.edge.jobs import Lease
from flywheel.environments.models import Environment, Task
from flywheel.environments.proofs.red_green_proof import failed_checks
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Failure
from flywheel.trajectories.models import Bulk, Trajectory
from tests.conftest import Build, Cast
from tests.workbench import outcomes, report, unlabelled_failures
from workers.jobs.trajectories.bulk_changes import carry_out

PAGE = Path(__file__).parents[2] / "docs/design/replay.md"

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not report.RUNS.exists(), reason="the recorded runs are not here"),
]


def corrections() -> dict[str, dict[str, Any]]:
    """The calls that each run's author wanted, by run, as a correction says them."""
    found: dict[str, dict[str, Any]] = {}
    for file, domain in outcomes.FILES.items():
        lines = (report.RUNS / f"{file}.atif.jsonl").read_bytes().splitlines()
        for line, task in zip(lines, outcomes.tasks(domain), strict=True):
            found[json.loads(line)["trajectory_id"]] = unlabelled_failures.correction(task.target["calls"])
    return found


def label(row: Trajectory, said: report.Label, corrected: dict[str, Any], actor: Actor) -> Failure:
    """A reviewer's decision about a run, at the step where the fault is seen."""
    steps = list(row.steps.order_by("position").values_list("span_id", flat=True))
    step = next(each for each in steps if each == str(said.step) or each.endswith(f"-{said.step}"))
    return decide(trajectory=row, actor=actor, bucket=said.bucket, step=step, corrected=corrected)


def test_nearly_every_labelled_failure_becomes_a_proved_task(
    cast: Cast, build: Build, key: Callable[..., dict[str, str]], client: Client
) -> None:
    for file in outcomes.FILES:
        content = (report.RUNS / f"{file}.atif.jsonl").read_bytes()
        answer = client.post(
            "/api/v1/trajectories?format=atif", content, content_type="application/x-ndjson", headers=key("ingest")
        )
        assert answer.status_code in (200, 202), answer.content
    failures = [said for said in report.labels() if said.fails]
    rows = {row.trace_id: row for row in Trajectory.objects.filter(trace_id__in=[said.run for said in failures])}
    right = corrections()
    for said in failures:
        label(rows[said.run], said, right[said.run], Actor(cast.reviewer))

    version = build.version(tools=list(DEFINITIONS))
    wanted: dict[str, Any] = {"name": "replay", "kind": "episode", "version": str(version)}
    made = client.post("/api/v1/environments", wanted, content_type="application/json", headers=key("build"))
    assert made.status_code == 201, made.content
    Environment.objects.filter(name="replay").update(agent=None)
    asked = {"id": [said.run for said in failures], "environment": "replay", "key": str(uuid.uuid4())}
    bulk = client.post("/api/v1/bulk/tasks", asked, content_type="application/json", headers=key("build"))
    assert bulk.status_code == 202, bulk.content
    lease = Bulk.claim(Bulk.objects.get().pk)
    assert isinstance(lease, Lease)
    with lease:
        carry_out(lease)

    tasks = {task.source.trace_id: task for task in Task.objects.select_related("source") if task.source}
    unproved = {trace: [c["name"] for c in failed_checks(t)] for trace, t in tasks.items() if not t.is_proved}
    proved = Counter(said.bucket for said in failures if said.run in tasks and tasks[said.run].is_proved)
    every = Counter(said.bucket for said in failures)
    lines = ["| bucket | labelled | proved tasks |", "|---|---|---|"]
    lines += [f"| {bucket} | {count} | {proved[bucket]} |" for bucket, count in every.most_common()]
    lines.append(f"| all | {every.total()} | {proved.total()} |")
    assert proved.total() >= 0.95 * len(failures), (unproved, Bulk.objects.get().report)
    assert "\n".join(lines) in PAGE.read_text()
