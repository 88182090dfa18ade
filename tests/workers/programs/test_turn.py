"""`make turn ALGORITHM=grpo`, small, with a real worker: what SFT has made of one week goes on to practise the next."""

import time
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.core.evidence.statistics.estimates import proportion
from flywheel.environments.models import TaskSet
from flywheel.evals.reward_audits.audit_lifecycle import override
from flywheel.evals.reward_audits.reward_standing import Judged
from flywheel.training.models import TrainingRun
from tests.evals.conftest import served
from tests.worker import Worker
from workers.programs import story_playback, turn

__all__ = ["served"]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few customers and few steps. So few answers are right that no suite and no green audit can be made of them."""
    monkeypatch.setattr(turn, "BEFORE", range(16))
    monkeypatch.setattr(turn, "LATER", range(16, 32))
    monkeypatch.setattr(turn, "STEPS", 10)
    monkeypatch.setattr(turn, "REINFORCED", {**turn.REINFORCED, "steps": 2, "batch_size": 16})
    monkeypatch.setattr(story_playback, "guard", lambda *_: [])

    def overridden(version: Version, task_set: TaskSet) -> Any:
        override(judged=Judged.now(version, task_set), actor=story_playback.approver(task_set.project), reason="a test")
        return SimpleNamespace(result={"agreement": asdict(proportion(1, 1))})

    monkeypatch.setattr(story_playback, "audit_reward", overridden)


@pytest.mark.worker
@pytest.mark.django_db(transaction=True)
def test_reinforcement_goes_on_with_the_version_that_sft_has_made(
    served: str, worker: Worker, short: None, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project.objects.create(slug="default", name="Default")
    result: dict[str, Any] = turn.turn_wheel(served, time.monotonic(), then="grpo")
    said = capsys.readouterr().err
    first, second = TrainingRun.objects.filter(project=project).order_by("pk")
    assert (first.algorithm, second.algorithm) == ("sft", "grpo"), said
    assert second.base == first.produced
    assert second.settings["steps"] == 2
    assert second.settings["dynamic_sampling"] is True
    assert second.task_set.name == "workplace-later"
    more = result["reinforced"]
    assert more["by"] == "grpo"
    assert more["trajectories"] > 30, "about three for each customer"
    assert more["failures"] > 0
    assert all(count > 0 for tasks in (result["tasks"], more["tasks"]) for count in tasks.values())
    assert more["verdict"] == second.candidates.get().verdict
    assert more["tuned"]["success"] is not None
    assert "ramp" not in result, "the ending belongs to the turn that ends with SFT"
