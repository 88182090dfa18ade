"""Customers of the stories of releases, without a web server and weights: their sessions are rows, as the gateway and
the detectors leave them, and the judge and the watch look as they do in beat."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from django.utils import timezone

from flywheel.agents.models import Version
from flywheel.core.evidence.ramp.ramp_plan import WHOLE
from flywheel.promotions.models import Ramp
from flywheel.promotions.ramps import claim_watching, ramp_judging
from tests.conftest import Build, proposed
from tests.promotions.ramps.conftest import met_in
from workers.programs import story_playback
from workers.programs.releases import story_releases
from workers.reference import story

Fails = Callable[[Version], float]
LOOK_EVERY = 8
"""Sessions between two looks of beat."""


class Customers:
    """Stands in for `come` and `wait_until`."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.chance = Random(5)
        self.fails: Fails = lambda _: 0.0
        """How often a version fails."""
        self.without_ramp: Callable[[Sequence[story.Request]], None] = lambda _: None
        """A session of what is live."""
        self.came: list[str] = []

    def come(
        self,
        application: Any,
        sessions: Iterator[Sequence[story.Request]],
        *,
        is_over: Callable[[], bool],
        is_ahead: Callable[[], bool],
    ) -> None:
        for number, requests in enumerate(sessions):
            if number % LOOK_EVERY == 0:
                self.look()
                assert not is_ahead()
            if is_over():
                return
            self.came.append(requests[0].session_id)
            ramp = Ramp.objects.filter(state__in=Ramp.OPEN).select_related("split__candidate", "split__live").first()
            if ramp is None:
                self.without_ramp(requests)
            else:
                self._meet(ramp)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        for _ in range(3):
            if condition():
                return
            self.look()
        raise story_playback.StoryFailed(f"waited until {what}")

    def look(self) -> None:
        ramp_judging.look()
        claim_watching.look()

    def _meet(self, ramp: Ramp) -> None:
        is_candidate = self.chance.random() < ramp.split.share / WHOLE
        version = ramp.split.candidate if is_candidate else ramp.split.live
        has_failed = self.chance.random() < self.fails(version)
        met_in(self.build, ramp)(is_candidate, outcome="failed" if has_failed else "success")


def shows(build: Build, version: Version, bucket: str, requests: Sequence[story.Request]) -> None:
    """A session that the version has answered, which is over and read, and in which a detector found the bucket."""
    at = timezone.now()
    over = at - timedelta(seconds=200)
    row = build.trajectory(
        session_id=requests[0].session_id,
        agent=version.agent,
        version=version,
        started_at=at,
        changed_at=over,
        detected_at=over,
    )
    proposed(row, bucket)


@pytest.fixture
def customers(build: Build, monkeypatch: pytest.MonkeyPatch) -> Customers:
    made = Customers(build)
    monkeypatch.setattr(story_releases, "come", made.come)
    monkeypatch.setattr(story_releases, "wait_until", made.wait_until)
    return made
