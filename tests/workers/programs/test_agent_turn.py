"""The second story, small, with a real worker and the real agent: from traffic to a fix that is live."""

from typing import Any

import pytest

from flywheel.accounts.models import Project
from flywheel.trajectories.models import Source
from tests.evals.conftest import served
from tests.worker import Worker
from workers.programs import agent_playback
from workers.programs.agent_turn import turn_agent

__all__ = ["served"]


@pytest.mark.worker
@pytest.mark.django_db(transaction=True)
def test_the_wheel_turns_for_a_teams_own_agent(served: str, worker: Worker) -> None:
    project = Project.objects.create(slug="default", name="Default")
    said: list[str] = []
    with agent_playback.open_desk() as desk:
        result: dict[str, Any] = turn_agent(served, desk, said.append, range(60), fresh=15)
    assert result["trajectories"] == 60, "one conversation is one trajectory"
    assert result["failures"] >= 20
    assert len(result["buckets"]) >= 6
    assert result["tasks"]["refused"] == 0
    assert (result["verdict"], result["live_before"], result["live_after"]) == (
        "eligible",
        "shop-helpdesk@1",
        str(project.agents.get().live),
    ), said
    assert result["live_after"] != result["live_before"]
    low, high = result["difference"]["ci95"]
    assert 0 <= low < high, "with so few tasks it is the one-sided bound, which the verdict is by, that lies above 0"
    assert result["answers"]["right_after"] > result["answers"]["right_before"]
    attempts = project.trajectories.filter(source=Source.ROLLOUT)
    assert attempts.exists()
    assert not attempts.filter(steps__error__gt="").exists()
