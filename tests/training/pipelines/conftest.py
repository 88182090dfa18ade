"""Two stages, SFT and then GRPO, of which a test ends the runs by itself."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Artifact, Version
from flywheel.edge.jobs import State
from flywheel.evals.models import EvalRun
from flywheel.evals.runs.run_summaries import summary_of
from flywheel.training.launch.run_control import LaunchRequest
from flywheel.training.models import PROMPT, Pipeline, Point, TrainingRun
from flywheel.training.pipelines import pipeline_steps
from flywheel.training.pipelines.pipeline_control import StageRequest, create
from flywheel.training.pipelines.prompt_stages import PromptRequest
from tests.training.conftest import NOON, Room
from tests.waiting import PATIENCE_S
from tests.worker import ROOT, database_url

GATE = {"min_success": 0.6, "max_unsafe": 0.05}


@dataclass
class Line:
    """Pipelines in a room."""

    room: Room

    @property
    def actor(self) -> Actor:
        return Actor(self.room.cast.trainer)

    def stages(self, *given: dict[str, Any]) -> list[StageRequest]:
        usual: dict[str, Any] = {"base": self.room.base, "task_set": self.room.task_set, "override_reason": "a test"}
        made = []
        for fields in given:
            run = {name: value for name, value in fields.items() if name != "gate"}
            request: LaunchRequest | PromptRequest
            if run.get("algorithm") == PROMPT:
                del run["algorithm"]
                request = PromptRequest(**{"base": self.room.base, "task_set": self.room.task_set, **run})
            else:
                request = LaunchRequest(key=uuid.uuid4(), **{**usual, **run})
            made.append(StageRequest(run=request, gate=fields.get("gate", {})))
        return made

    def prompted(self, gate: dict[str, float] | None = None, **fields: Any) -> list[StageRequest]:
        """A new prompt, and SFT with it."""
        prompt = {"algorithm": PROMPT, **(fields or {"system_prompt": "Check the day."})}
        return self.stages(prompt, {"algorithm": "sft", "settings": {"steps": 7}, "gate": gate or {}})

    def try_prompt(self, gate: dict[str, float] | None = None, **fields: Any) -> Pipeline:
        return create(key=uuid.uuid4(), stages=self.prompted(gate, **fields), actor=self.actor)[0]

    def evals(self, pipeline: Pipeline) -> tuple[EvalRun, EvalRun]:
        """Those of the draft and of its base, in the present attempt."""
        draft, base = pipeline_steps.jobs_of_stage(pipeline_steps.current(pipeline))
        assert isinstance(draft, EvalRun)
        assert isinstance(base, EvalRun)
        return draft, base

    def answer(self, run: EvalRun, success: Sequence[bool | None] = (True,), **parts: float) -> None:
        """End an eval as its worker does. Attempt k at a task passes as `success[k]` says, and is unscored for None."""
        for member in run.task_set.members.filter(split=run.split):
            for sample in range(run.samples):
                passed = success[sample % len(success)]
                scored = {} if passed is None else {"score": float(passed), "parts": {"valid_json": 1.0, **parts}}
                run.results.create(task=member.task, sample=sample, seed=sample, success=passed, **scored)
        about = {
            "finished_at": timezone.now(),
            "summary": summary_of(run),
            "first_request": {"prompt": "p"},
            "done": run.total,
        }
        EvalRun.objects.filter(pk=run.pk).update(state=State.SUCCEEDED, **about)

    def two(self, gate: dict[str, float] | None = None) -> list[StageRequest]:
        share = 0.34 if gate else 0.0
        return self.stages(
            {"algorithm": "sft", "settings": {"steps": 7, "validation_share": share}},
            {"algorithm": "grpo", "settings": {"steps": 5}, "gate": gate or {}},
        )

    def launch(self, gate: dict[str, float] | None = None) -> Pipeline:
        return create(key=uuid.uuid4(), stages=self.two(gate), actor=self.actor)[0]

    def run(self, pipeline: Pipeline) -> TrainingRun:
        """The run of the stage that it is at."""
        run = pipeline_steps.run_of_stage(pipeline_steps.current(pipeline))
        assert run is not None
        return run

    def end(self, run: TrainingRun, state: str = State.SUCCEEDED, **validation: Any) -> Version | None:
        """End a run as its worker does: with a version and, where it validated, its figures at the last step."""
        made = None
        if state == State.SUCCEEDED:
            weights = Artifact.objects.create(digest=f"{run.pk:064d}", manifest={}, kind="model", size=2_800_000)
            made = self.room.build.version(weights=weights, parent=run.base)
        if validation:
            values = {"score": validation["success"], "unscored": 0, **validation}
            Point.objects.create(run=run, kind=Point.Kind.VALIDATION, step=run.total or 0, at=NOON, values=values)
        TrainingRun.objects.filter(pk=run.pk).update(state=state, produced=made)
        return made

    def measure(self, version: Version) -> None:
        """Evaluate a version on the held-out tasks, as the end of its run has it done."""
        first, self.room.base = self.room.base, version
        self.room.evaluated()
        self.room.base = first


@pytest.fixture
def line(room: Room) -> Line:
    return Line(room)


@pytest.fixture
def at_gate(line: Line) -> Callable[[], Pipeline]:
    """A pipeline whose first run solved too few of its validation tasks."""

    def make() -> Pipeline:
        pipeline = line.launch(GATE)
        made = line.end(line.run(pipeline), success=0.4, n=20, parts={"unsafe": 0.0, "valid_json": 0.95})
        assert made is not None
        line.measure(made)
        pipeline_steps.sweep()
        pipeline.refresh_from_db()
        return pipeline

    return make


def run_to_its_death(script: str) -> None:
    """Run the script in a process of its own, on this database, until it kills itself."""
    environ = {"DJANGO_SETTINGS_MODULE": "flywheel.settings", "DATABASE_URL": database_url()}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, **environ, "FLYWHEEL_HOME": str(settings.HOME)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
