from pathlib import Path

import pytest
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.models import Project
from flywheel.environments.proofs.red_green_proof import failed_checks
from tests.conftest import Cast
from tests.workbench import report
from workers.programs import workbench_demo
from workers.programs.story_playback import StoryFailed

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.skipif(not report.RUNS.exists(), reason="the recorded runs are not here")
def test_sixty_recorded_runs_are_labelled_and_every_failure_is_a_task(cast: Cast, live_server: LiveServer) -> None:
    said: list[str] = []
    for _ in range(2):
        workbench_demo.load(report.RUNS, cast.project, live_server.url, said.append)
    project = Project.objects.get(slug="workbench")
    assert len(said) == 1, "once is enough"
    assert (project.trajectories.count(), project.trajectories.filter(label="").count()) == (60, 0)
    failures = project.failures.exclude(bucket="")
    assert failures.count() == sum(label.fails for label in report.labels()[:60])
    assert not failures.filter(tasks=None).exists()
    assert [(str(task), failed_checks(task)) for task in project.tasks.exclude(bucket="") if not task.is_proved] == []
    assert "MIT" in project.agents.get().description
    assert project.memberships.count() > cast.project.memberships.count()


def test_a_folder_without_the_runs_is_refused_by_name(cast: Cast, live_server: LiveServer, tmp_path: Path) -> None:
    with pytest.raises(StoryFailed, match="has no calendar"):
        workbench_demo.load(tmp_path, cast.project, live_server.url, print)
    assert not Project.objects.filter(slug="workbench", trajectories__isnull=False).exists()
