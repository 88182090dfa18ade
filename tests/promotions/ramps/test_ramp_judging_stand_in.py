"""Who judges while beat does not."""

from datetime import timedelta

import pytest
from django.utils import timezone

from flywheel.agents.models import Split
from flywheel.agents.splits.open_splits import LEASE_S
from flywheel.promotions.models import Ramp
from flywheel.promotions.ramps import ramp_judging
from tests.promotions.ramps.conftest import Met
from tests.promotions.ramps.test_ramp_judging import sessions
from tests.worker import Worker


@pytest.mark.parametrize(("ago", "ended"), [(1.0, "running"), (3.0, "taken_back")])
def test_another_process_judges_where_nobody_has_looked_for_two_seconds(
    ramp: Ramp, met: Met, ago: float, ended: str
) -> None:
    sessions(met, 60, live=0.0, candidate=1.0, share=0.25)
    Split.objects.update(lease_until=timezone.now() + timedelta(seconds=LEASE_S - ago))
    ramp_judging.stand_in()
    assert Ramp.objects.get(pk=ramp.pk).state == ended


@pytest.mark.django_db(transaction=True)
def test_a_worker_goes_on_with_the_ramps_of_a_beat_that_was_killed(worker: Worker, ramp: Ramp, met: Met) -> None:
    assert worker.beat is not None
    worker.beat.kill9()
    sessions(met, 60, live=0.0, candidate=1.0, share=0.25)
    worker.wait_until(lambda: Ramp.objects.get(pk=ramp.pk).state == "taken_back", "it is taken back")
    assert Split.objects.get().share == 0
